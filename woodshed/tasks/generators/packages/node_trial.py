"""Try a candidate of a Node project: ``trial.py`` with the runner and the grader of Node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from woodshed.grading.heldout import EndlessError, reference
from woodshed.grading.node.grader import NODE, run_node
from woodshed.grading.pytest_phases import Phase
from woodshed.grading.results import TestRun
from woodshed.grading.telling import problem_of
from woodshed.record.task import Task
from woodshed.sandbox.protocol import Sandbox, Snapshot
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.prompts.write import Shown
from woodshed.tasks.languages.node.functions import function_named, functions_of, signature_of
from woodshed.tasks.languages.node.mutations import mutations
from woodshed.tasks.languages.node.prepare import package_spec
from woodshed.tasks.languages.node.project import test_files
from woodshed.tasks.packages.prepare import WORKDIR
from woodshed.tasks.validate.guessing import ENDLESS, GUESSABLE, cheaply, each_alone, replaceable

from .node_save import NODE_FORM
from .proof import Proof
from .report import Guessable, Rejected
from .save import Form
from .trial import Trial, uncollected


@dataclass
class NodeTrial(Trial):
    """A trial of a Node project."""

    form: ClassVar[Form] = NODE_FORM

    def shown(self, candidate: Candidate) -> Shown:
        source, function = self.workspace[candidate.function.module], candidate.function
        return Shown(signature_of(source, function_named(source, function.name)), function.line)

    def test_files(self, workspace: Mapping[str, bytes]) -> list[str]:
        return list(test_files(workspace, self.package.tests))

    def variants(self, path: str, before: bytes, after: bytes) -> list[tuple[str, bytes]]:
        try:
            changed = [f for f in functions_of(after) if after[f.head : f.body[1]] not in before]
        except SyntaxError:
            return []
        return [(m.kind, m.source.encode()) for f in changed for m in mutations(after, f)]

    def guesses(self, task: Task) -> bool:
        return False  # ``_prove`` does it below, in separate boxes

    async def _prove(self, task: Task, functions: Mapping[str, Sequence[str]]) -> Proof:
        proof = await super()._prove(task, functions)
        try:
            found = await reference(task, self.backend, self.layers, NODE)
            why = problem_of(found)
            if not why:
                why, left = await cheaply(task=task, found=found, backend=self.backend, layers=self.layers, how=NODE)
            if not why:
                own = await each_alone(task, found, left, functions, self.backend, self.layers, NODE)
                if names := replaceable(left, functions, own):
                    raise Guessable(GUESSABLE, names)
        except EndlessError:
            why = ENDLESS
        if why:
            raise Rejected(why)
        return replace(proof, own_values=own)

    async def _open(self) -> Snapshot:
        paths = tuple(self.layers.path(name) for name in self.layer_names)
        limit = self.settings.suite_seconds
        box = await self.backend.create(package_spec(self.package, paths, self.workspace, limit))
        try:
            base = await box.snapshot("fs")
            try:
                (run,) = await self._phases(box, [Phase(self.test_files(self.workspace), (), timeout=limit)])
            except BaseException:
                await self.backend.drop(base)
                raise
            self._uncollected = uncollected(run)
            return base
        finally:
            await box.close()

    async def _phases(self, box: Sandbox, phases: list[Phase]) -> list[TestRun]:
        """As ``run_phases``, with one process per file. No framework of Node can collect tests without running them, so
        a file counts as collected if it runs to its end."""
        runs = []
        for phase in phases:
            for name in phase.delete:
                await box.delete(f"{WORKDIR}/{name}")
            await box.put({f"{WORKDIR}/{name}": data for name, data in phase.write.items()})
            # An endless loop cannot be interrupted from inside, so the time of the whole run is limited.
            needed = 15.0 + 20 * sum(self.suite.tests.get(test, 0.0) for test in phase.ids or ())
            run = await run_node(
                box,
                {name: self.workspace[name] for name in phase.files},
                phase.ids,
                workdir=WORKDIR,
                timeout=min(phase.timeout, needed) if phase.ids else phase.timeout,
                test_timeout=phase.test_timeout,
            )
            if not phase.ids and not run.detail.startswith("timed out"):
                run.status = int(bool(run.problems))
            runs.append(run)
        return runs
