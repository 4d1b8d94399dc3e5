"""The part that runs inside vLLM's workers: each worker follows the weight chain itself.

vLLM imports this module for ``--worker-extension-cls`` and finds the transfer engine registered here under
``--weight-transfer-config '{"backend": "woodshed"}'``. A thread fetches and decodes a version while the engine samples;
only the copy into the model needs a pause.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from woodshed.weights.follow import Follower

BACKEND = "woodshed"


@dataclass
class Nothing(WeightTransferInitInfo):
    """No initialisation data: workers get the chain's location with every ``look``."""


@dataclass
class Apply(WeightTransferUpdateInfo):
    """Request to copy ``version``, which every worker has decoded, into the model."""

    version: int


class ChainTransfer(WeightTransferEngine):
    """Loads weights from a chain into the worker's model, in checkpoint format (Hugging Face names, whole tensors)."""

    init_info_cls = Nothing
    update_info_cls = Apply
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._follower: Follower | None = None
        self._chain = ""
        self._decoded: tuple[int, dict[str, Any]] | None = None
        self._thread: threading.Thread | None = None
        self._problem: str | None = None

    def look(self, chain: str, above: int, least: int) -> dict[str, Any]:
        """Return which version is decoded, whether a thread is busy, and what failed since the last call.

        A decoded version above ``above`` and not below ``least`` is kept until it has been applied. Otherwise this call
        starts a thread that fetches the newest version (at most ``least`` if that is not 0, so that all workers arrive
        at the same version), and a later call reports the result.
        """
        if self._thread is not None and self._thread.is_alive():
            return {"decoded": None, "busy": True, "problem": None}
        looked, self._thread = self._thread is not None, None
        problem, self._problem = self._problem, None
        ready = None if self._decoded is None else self._decoded[0]
        if ready is not None and ready > above and ready >= least:
            return {"decoded": ready, "busy": False, "problem": None}
        if not looked:
            self._thread = threading.Thread(target=self._fetch, args=(chain, least or None), daemon=True)
            self._thread.start()
        return {"decoded": None, "busy": not looked, "problem": problem}

    def _fetch(self, chain: str, up_to: int | None) -> None:
        try:
            if self._follower is None or chain != self._chain:
                self._follower, self._chain, self._decoded = Follower(chain), chain, None
            found = self._follower.poll(up_to=up_to)
            if found is not None:
                self._decoded = found
        except Exception as error:  # reported by the next `look`
            self._problem = f"{type(error).__name__}: {error}"

    def init_transfer_engine(self, init_info: Nothing) -> None:
        pass

    def start_weight_update(self) -> None:
        if self.device.type == "cpu" and self.model_config.get_num_experts() > 0:
            raise RuntimeError(
                "vLLM's CPU build does not repack the weights of experts: after an update it would sample with wrong "
                "weights; use a GPU, or the built-in engine"
            )
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # the base class synchronizes an accelerator afterwards, and fails without one
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Apply) -> None:
        if self._decoded is None or self._decoded[0] != update_info.version:
            held = None if self._decoded is None else self._decoded[0]
            raise RuntimeError(f"version {update_info.version} is not decoded here (held: {held})")
        self.model.load_weights(iter(self._decoded[1].items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        method = getattr(head, "quant_method", None)
        if self.device.type == "cpu" and method is not None:
            # a tied head is packed only once, at the start; without this it would keep the old weights
            method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        self._follower = self._decoded = None

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise RuntimeError(
            "vLLM loads weights from the chain that the trainer publishes, not through trainer_send_weights"
        )


class ChainWorker:
    """Mixin for vLLM's worker, called over ``/collective_rpc``, whose arguments are strings."""

    weight_transfer_engine: Any

    def woodshed_look(self, chain: str, above: str, least: str) -> dict[str, Any]:
        """See ``ChainTransfer.look``."""
        return self.weight_transfer_engine.look(chain, int(above), int(least))


WeightTransferEngineFactory.register_engine(BACKEND, ChainTransfer)
