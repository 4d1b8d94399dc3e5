"""The ranks of a trainer: processes that shard a decoder with FSDP2 over gloo, train it by steps that anybody can
compute, and publish it together.

``python -m tests.weights.rank`` reads lines ``[scenario, world, rendezvous, chain]``, forks the ranks (imports cost
more than the work) and prints what each wrote: a list of objects per rank.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.weights.background import BackgroundPublisher
from woodshed.weights.chain import Publisher
from woodshed.weights.layout import decoder_layout, split
from woodshed.weights.ranks import Ranks

CONFIG = DecoderConfig(
    50, 16, 2, 4, 2, 4, 24, "qwen3_moe", num_experts=3, num_experts_per_tok=2, moe_d_ff=8, mlp_only_layers=(0,),
    tie_embeddings=False,
)  # fmt: skip


def decoder_at(step: int, config: DecoderConfig = CONFIG) -> Decoder:
    """Weights of the decoder after training: every element changes a little with every step."""
    decoder = Decoder(config, seed=1)
    with torch.no_grad():
        for s in range(1, step + 1):
            for parameter in decoder.parameters():
                parameter.mul_(1 + 1e-4 * s).add_(1e-5)
    return decoder


def main(scenario: str, rank: int, world: int, rendezvous: str, chain: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    decoder = Decoder(CONFIG, seed=1)
    layout = decoder_layout(decoder)
    shape = (2, world // 2) if scenario == "replicas" else (world,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard")[-len(shape) :])
    fully_shard(decoder, mesh=mesh)
    publisher = Publisher(chain, 3, keep_anchors=2, fsync=False, part_bytes=2048, ranks=Ranks.all())
    background = BackgroundPublisher(publisher) if scenario == "background" else None
    start = publisher.head or 0
    for step in range(1, start + 8):
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.mul_(1 + 1e-4 * step).add_(1e-5)
        dist.all_reduce(torch.ones(1))  # Ranks are never more than a step apart.
        if step <= start:
            continue
        state = split(dict(decoder.named_parameters()), layout)
        if scenario == "dies" and step == 3 and rank == world - 1:
            os._exit(7)
        if scenario == "fails" and step == 3 and rank == world - 1:
            publisher.store = Unwritable(publisher.store)
        try:
            (background or publisher).publish(step, state)
        except Exception as error:
            print(json.dumps({"step": step, "error": f"{type(error).__name__}: {error}"}), flush=True)
            os._exit(3)
    if background is not None:
        background.close()
        print(json.dumps({"published": background.published, "skipped": background.skipped}))
    print(json.dumps({"head": publisher.head, "bytes": publisher.bytes_written}))
    dist.destroy_process_group()


class Unwritable:
    """A store whose disk is full for this rank."""

    def __init__(self, store):
        self.store, self.url = store, store.url

    def listing(self, *, after: str = "") -> list[str]:
        return self.store.listing(after=after)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def put(self, key: str, data: bytes) -> None:
        raise OSError(28, "No space left on device", key)


def fork_ranks(scenario: str, world: int, rendezvous: str, chain: str) -> list[list[dict]]:
    children = []
    for rank in range(world):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(writer, 1)
            status = 1
            try:
                main(scenario, rank, world, rendezvous, chain)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(writer)
        children.append((pid, reader))
    out = []
    for _, reader in children:
        with open(reader) as file:
            out.append([json.loads(line) for line in file])
    for (pid, _), lines in zip(children, out, strict=True):
        lines.append({"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})
    return out


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(fork_ranks(*json.loads(line))), flush=True)
