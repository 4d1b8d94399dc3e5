"""Check the options of a build against its lock: an option that would have no effect is refused."""

from __future__ import annotations

from collections.abc import Collection

from woodshed.tasks.install.lock import find_install
from woodshed.tasks.languages.node.modules import wished_modules
from woodshed.tasks.packages.catalogue import Catalogue, Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.claim import SOURCES
from woodshed.tasks.sources.requirements import canonical, wished
from woodshed.tasks.sources.spec import SourceSpec, marked, source_name

from .pin import Wishes


def held_out(settings: PackageTaskSettings) -> PackageTaskSettings:
    """``settings`` with the names of held-out sources normalised: ``My_Repo`` becomes ``my-repo``."""
    if "heldout_packages" not in settings.model_fields_set:
        return settings
    names = tuple(map(source_name, settings.heldout_packages))
    return settings.model_copy(update={"heldout_packages": names})


def check_held_out(settings: PackageTaskSettings, sources: Collection[str]) -> None:
    """Raise PackageError if a source that is held out by ``--heldout`` is not among ``sources``."""
    if "heldout_packages" not in settings.model_fields_set:
        return
    for name in settings.heldout_packages:
        if name not in sources:
            raise PackageError(f"--heldout {name}: no source is called that; there are {', '.join(sorted(sources))}")


def same_wishes(spec: SourceSpec, known: Package, catalogue: Catalogue, wishes: Wishes) -> None:
    """Raise PackageError if a source was locked with other options than ``wishes``."""
    locked = f"{spec.text} is locked in {SOURCES}"
    places = (
        ("--code", wishes.code, known.sources),
        ("--tests", wishes.tests, known.tests),
        ("--root", wishes.roots, known.path),
    )
    for option, asked, have in places:
        if asked and not set(asked) <= set(have):
            raise PackageError(f"{locked} with {option} {', '.join(have)}; use another --out")
    if wishes.markers and wishes.markers.split() != marked(known.options).split():
        have_markers = f"with --markers '{marked(known.options)}'" if marked(known.options) else "without --markers"
        raise PackageError(f"{locked} {have_markers}; use another --out")
    if lacking := _lacking(known, catalogue, wishes):
        raise PackageError(f"{locked} without --needs {', '.join(lacking)}; use another --out")
    if wishes.installs is not None and known.install != _digest(spec, known, wishes):
        what = "another --install" if known.install else "--install"
        raise PackageError(f"{locked} with{'' if known.install else 'out'} {what}; use another --out")


def _lacking(known: Package, catalogue: Catalogue, wishes: Wishes) -> list[str]:
    """Return the ``--needs`` that were neither given before (even if they could not be fetched then) nor locked."""
    more = [text for text in wishes.needs if text not in known.asked]
    if known.language == "node":
        modules = {module.package for module in catalogue.modules.get(known.name, ())}
        return [text for text in more if not set(wished_modules([text])) <= modules]
    wheels = {canonical(wheel.name) for _, group in catalogue.wheels_of(known) for wheel in group}
    return [text for text in more if wished([text])[0].name not in wheels]


def _digest(spec: SourceSpec, known: Package, wishes: Wishes) -> str:
    """Return the digest of the install in the folder ``--install``, or of the locked one if the folder has none."""
    assert wishes.installs is not None
    try:
        return find_install(wishes.installs, spec.origin).digest
    except PackageError:
        return known.install or "none"
