"""Which programs sample for a run, and how they find each other."""

import json
from pathlib import Path

from real_runs import SMOKE

from woodshed.engine.settings import EngineServerSettings
from woodshed.gateway.settings import GatewaySettings
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.stages.servers import server_programs


def test_one_engine_is_part_of_the_server(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (server,) = server_programs(load_recipe(SMOKE), run, tmp_path / "policy", weights=str(tmp_path / "weights"))
    settings = GatewaySettings.model_validate_json((tmp_path / "server" / "server.json").read_bytes())
    assert server.name == "server" and settings.engines == () and settings.weights == str(run.weights)
    address = json.loads((tmp_path / "server" / "address.json").read_text())
    assert address["url"] == f"http://127.0.0.1:{settings.port}"
    assert oct((tmp_path / "server" / "admin.key").stat().st_mode)[-3:] == "600"


def test_several_engines_are_programs_that_the_server_routes_between(tmp_path: Path) -> None:
    (tmp_path / "server" / "journal").mkdir(parents=True)
    recipe = load_recipe(SMOKE, ["engine.replicas=3", "engine.prefix_cache=salt"])
    programs = server_programs(recipe, RunDirectory(tmp_path), tmp_path / "policy", weights=str(tmp_path / "weights"))
    assert [program.name for program in programs] == ["engine-0", "engine-1", "engine-2", "server"]
    engines = [
        EngineServerSettings.model_validate_json((tmp_path / "server" / f"engine-{n}.json").read_bytes())
        for n in range(3)
    ]
    server = GatewaySettings.model_validate_json((tmp_path / "server" / "server.json").read_bytes())
    assert server.engines == tuple(f"http://127.0.0.1:{engine.port}" for engine in engines)
    assert len({server.port, *(engine.port for engine in engines)}) == 4
    assert [engine.gpu for engine in engines] == [0, 1, 2]
    assert {engine.admin_key_file for engine in engines} == {server.admin_key_file}
    assert all(
        engine.engine.prefix_cache == "salt" and engine.weights == str(tmp_path / "weights") for engine in engines
    )
    assert server.journal is not None and server.journal.exists(), "rollouts that an earlier start had open go on"
    server_programs(recipe, RunDirectory(tmp_path), tmp_path / "policy")
    assert not server.journal.exists(), "episodes of an evaluation are run again"
