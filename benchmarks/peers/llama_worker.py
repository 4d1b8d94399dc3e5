"""llama.cpp in a process of its own: ``PYTHON llama_worker.py MODEL.gguf SLOTS CONTEXT F32|F16``, run by ``llama.py``.

Runs in the environment that has ``llama-cpp-python`` and numpy, and imports nothing of woodshed. Reads a line of JSON
``{"prompts": [[id]], "tokens": n}`` and answers one: ``{"tokens": [[id]], "logprobs": [[float]]}``. The first line that
it writes says that the model is loaded. One thread, temperature 1.
"""

from __future__ import annotations

import json
import sys

import llama_cpp
import numpy as np

BATCH = 512


class Slots:
    """A context with ``slots`` sequences of at most ``length`` tokens each, keys and values as ``kind`` says."""

    def __init__(self, path: str, slots: int, length: int, kind: str) -> None:
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = slots * length, slots
        options.n_batch = options.n_ubatch = BATCH
        options.type_k = options.type_v = getattr(llama_cpp, f"GGML_TYPE_{kind}")
        if kind == "F32":  # its flash attention rounds more than that on a CPU (log-probabilities by 1e-3)
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.n_threads = options.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.rng = np.random.default_rng(0)

    def sample(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], list[list[float]]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        ids: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        rows = []
        for s, prompt in enumerate(prompts):
            rows += [(s, at, token, at == len(prompt) - 1) for at, token in enumerate(prompt)]
        for at in range(0, len(rows), BATCH):
            self._step(rows[at : at + BATCH], ids, logprobs)
        for _ in range(tokens - 1):
            ends = [(s, len(prompts[s]) + len(ids[s]) - 1, ids[s][-1], True) for s in range(len(prompts))]
            self._step(ends, ids, logprobs)
        return ids, logprobs

    def _step(self, rows: list[tuple[int, int, int, bool]], ids: list[list[int]], logprobs: list[list[float]]) -> None:
        """Compute (sequence, position, token, wanted) rows and sample behind those that are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        code = llama_cpp.llama_decode(self.context, batch)
        if code:
            raise SystemExit(f"llama_decode answered {code}")
        due = [sequence for sequence, _, _, wanted in rows if wanted]
        if not due:
            return
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (len(due), self.vocabulary))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        sums = weights.cumsum(axis=1, dtype=np.float64)
        points = self.rng.random(len(due)) * sums[:, -1]
        for row, (sequence, point) in enumerate(zip(due, points)):
            token = min(int(sums[row].searchsorted(point, side="right")), self.vocabulary - 1)
            ids[sequence].append(token)
            logprobs[sequence].append(float(np.log(weights[row, token] / sums[row, -1])))


def main() -> None:
    path, slots, length, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    ready = Slots(path, slots, length, kind)
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        tokens, logprobs = ready.sample(asked["prompts"], asked["tokens"])
        print(json.dumps({"tokens": tokens, "logprobs": logprobs}), flush=True)


if __name__ == "__main__":
    main()
