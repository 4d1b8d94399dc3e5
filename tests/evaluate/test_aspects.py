"""A model as judge of aspects: what it answers counts only as far as it agrees with itself and with rules."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from woodshed.evaluate.aspects import ASPECTS, READINGS, agreement_of, cohen_kappa
from woodshed.evaluate.suites.interaction import write_interaction
from woodshed.run.evaluation.plan import Wishes
from woodshed.run.evaluation.policies import EvaluationError
from woodshed.run.evaluation.run import evaluate_policies
from woodshed.sandbox import open_backend
from woodshed.view.comparison import agreement_cells

from .scripted_models import ScriptedServer, running
from .test_axes import quiet

COUNT = 4


class _Judge(BaseHTTPRequestHandler):
    """``fair`` says no where tests ran and an unused import came in, ``coin`` anything, ``prose`` no JSON."""

    asked = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).asked += 1
        code, line, _ = body["messages"][-1]["content"].split("\n")
        shown = json.loads(line)
        rng = random.Random(f"{code}{body['model']}")
        yes = "import os" not in line if body["model"] == "fair" else rng.random() < 0.5
        text = json.dumps({"code": code, "yes": yes, "quote": shown["task"][:20]})
        text = "I would say yes." if body["model"] == "prose" else text
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        data = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_judge_beside_the_rules(tmp_path: Path) -> None:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    tasks = write_interaction(tmp_path / "tasks", COUNT)
    judges = ThreadingHTTPServer(("127.0.0.1", 0), _Judge)
    with running(ScriptedServer(tasks)) as scripted, running(judges):
        models, url = scripted.url, f"http://127.0.0.1:{judges.server_address[1]}"
        limits = ("sampled_tokens=0", "context_tokens=0", "turn_tokens=999", "turns=9")
        asked = Wishes(
            tmp_path / "out",
            tuple(f"{model}={models}#{model}" for model in ("attentive", "eager")),
            (f"interaction:{COUNT}",),
            agents=("smoke",),
            overrides=(
                'harness.tools=["read_file","write_file","undo","run_tests","finish"]',
                *(f"harness.limits.{limit}" for limit in limits),
            ),
            judge=f"{url}#prose",
        )
        found = evaluate_policies(asked, quiet)
        questions = 2 * COUNT * READINGS * len(ASPECTS)
        assert {each["failed"] for each in found["agreements"].values()} == {2 * COUNT * READINGS}
        assert not any(name.startswith("judge.") for name in found["axes"]), "no answer, no value"
        assert _Judge.asked >= questions

        fair = replace(asked, judge=f"{url}#fair")
        found = evaluate_policies(fair, quiet)
        intent = found["agreements"]["intent"]
        assert (intent["episodes"], intent["failed"], intent["rule"]) == (2 * COUNT, 0, "as_asked")
        assert intent["agreement"] == intent["rule_agreement"] == intent["rule_kappa"] == intent["kappa"] == 1.0
        assert [policy["axes"]["judge.intent"]["mean"] for policy in found["policies"]] == [1.0, 0.0]
        before = _Judge.asked
        assert evaluate_policies(fair, quiet) == found and _Judge.asked == before, "no question is asked twice"
        assert agreement_cells(found)[-1][:4] == ["intent", str(2 * COUNT), "0", "100.0 %"]

        coin = evaluate_policies(replace(asked, judge=f"{url}#coin"), quiet)["agreements"]["intent"]
        assert coin["agreement"] < 1.0 and abs(coin["rule_kappa"]) < 1.0
        for wrong, said in (("fair", "write http"), (f"{url}#", "write http")):
            with pytest.raises(EvaluationError, match=said):
                evaluate_policies(replace(asked, judge=wrong), quiet)
        with pytest.raises(EvaluationError, match="--judge-key-env NONE_SUCH"):
            evaluate_policies(replace(fair, judge_key_env="NONE_SUCH"), quiet)


def test_kappa_against_its_definition_by_a_table() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        table = rng.integers(1, 30, (2, 2))
        pairs = [(bool(a), bool(b)) for a in (0, 1) for b in (0, 1) for _ in range(table[a, b])]
        total = table.sum()
        chance = (table.sum(0) @ table.sum(1)) / total**2
        assert cohen_kappa(pairs) == pytest.approx((np.trace(table) / total - chance) / (1 - chance))
    assert math.isnan(cohen_kappa([])) and math.isnan(cohen_kappa([(True, True)] * 5))


def test_readings_have_no_order_and_rules_may_say_nothing() -> None:
    answers = {"a": [True, False], "b": [False, True], "c": [True, True], "d": [False, False]}
    found = agreement_of("intent", answers, 1, {"a": {"as_asked": 1.0}, "b": {"as_asked": None}})
    assert found.agreement == 0.5 and found.kappa == 0.0, "half the pairs agree, as two coins would"
    assert found.rule_agreement == 0.5 and found.failed == 1
    claims = agreement_of(
        "message", {"a": [True], "b": [False]}, 0, {"a": {"unfounded_claims": 0.0}, "b": {"unfounded_claims": 1.0}}
    )
    assert claims.rule_agreement == 1.0 and math.isnan(claims.agreement), "a claim without ground is a no"
    assert agreement_of("change", answers, 0, {}).rule == ""
