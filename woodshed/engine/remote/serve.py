"""An engine as a program: ``woodshed engine``, or ``python -m woodshed.engine.remote.serve --settings FILE``.

On SIGTERM it takes no new request and finishes what runs (``shutdown_seconds``): a router sends the rest elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from pathlib import Path

from woodshed.engine.access import read_admin_key
from woodshed.engine.settings import EngineServerSettings


def main(settings: EngineServerSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ValueError, FileNotFoundError or OSError before the first request."""
    import uvloop

    uvloop.run(serve(settings))


async def serve(settings: EngineServerSettings) -> None:
    """Load the policy, catch up with its weights, answer requests; in the running event loop."""
    admin_key = read_admin_key(settings.admin_key_file)

    from woodshed.engine.listen import listen
    from woodshed.engine.opening import open_engine

    from .service import build_service

    async with contextlib.AsyncExitStack() as stack:
        opened = await open_engine(settings, stack, gpu=settings.gpu)
        follow = None if opened.chain is None else opened.chain.follow
        app = build_service(opened.engine, admin_key=admin_key, follow=follow, max_body=settings.max_body)
        await listen(app, settings, stack)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="woodshed.engine.remote.serve", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="JSON file of EngineServerSettings")
    given = parser.parse_args()
    try:
        main(EngineServerSettings.model_validate_json(given.settings.read_bytes()))
    except (ValueError, FileNotFoundError) as problem:  # no second try helps
        print(f"woodshed engine: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        sys.exit(f"woodshed engine: {problem}")
