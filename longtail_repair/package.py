"""One package drawn from a family: which functions, under which names, in which files. Pure; seeded by the caller."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from longtail_repair.draws import Draw
from longtail_repair.families import Family, Template
from longtail_repair.names import draw_names, rename
from longtail_repair.style import restyle


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    module: str
    source: str
    arguments: tuple[Draw, ...]
    uses: frozenset[str]  # names of other functions of the package
    has_default: bool  # the last parameter may be left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    name: str
    about: str
    modules: tuple[str, ...]
    functions: Mapping[str, Function]  # in the order of the files
    constants: Mapping[str, Any]  # drawn values, by their names in the family
    named: Mapping[str, Any]  # of those, the ones that stand in the files by name

    def path(self, module: str) -> str:
        return f"{self.name}/{module}.py"

    def callers(self, name: str) -> list[str]:
        """The function and all that reach it."""
        reached = [name]
        for callee in reached:
            reached += [f.name for f in self.functions.values() if callee in f.uses and f.name not in reached]
        return reached

    def files(self, changed: Mapping[str, str] | None = None) -> dict[str, str]:
        """Path -> source of the package, with the sources of some functions changed."""
        sources = {name: (changed or {}).get(name, function.source) for name, function in self.functions.items()}
        return {
            f"{self.name}/__init__.py": "",
            **{self.path(module): self._module(module, sources) for module in self.modules},
        }

    def _module(self, module: str, sources: Mapping[str, str]) -> str:
        here = [f for f in self.functions.values() if f.module == module]
        wanted = sorted({name for f in here for name in f.uses})
        imports = [
            f"from {self.name}.{other} import {', '.join(names)}"
            for other in self.modules
            if other != module and (names := [n for n in wanted if self.functions[n].module == other])
        ]
        text = "\n".join(f.source for f in here)
        constants = [f"{name} = {value!r}" for name, value in self.named.items() if re.search(rf"\b{name}\b", text)]
        heads = ["\n".join(part) for part in (imports, constants) if part]
        return "\n\n".join([*heads, *(sources[f.name] for f in here)]) + "\n"


def draw_package(family: Family, *, files: int, functions: int, rng: Random) -> Package:
    """A package of `files` modules with about `functions` functions."""
    chosen = _choose(family, max(files, functions), rng)
    constants = {name: rng.choice(values) for name, values in family.constants.items()}
    named = {name: value for name, value in constants.items() if rng.random() < 0.3}
    inline = {name: repr(value) for name, value in constants.items() if name not in named}
    name = rng.choice(family.packages)
    modules = tuple(rng.sample([m for m in family.modules if m != name], files))
    public = _public_names(chosen, frozenset({name, *modules}), rng)
    homes = _homes(chosen, modules, rng)
    made = [_function(t, public, inline, homes[t.name], rng) for t in chosen]
    made.sort(key=lambda f: modules.index(f.module))
    return Package(
        name=name,
        about=family.about,
        modules=modules,
        functions={f.name: f for f in made},
        constants=constants,
        named=named,
    )


def _choose(family: Family, count: int, rng: Random) -> list[Template]:
    """Templates and all they use, in random order; stops at `count`."""
    order = rng.sample(sorted(family.templates), len(family.templates))
    chosen: dict[str, Template] = {}
    for name in order:
        if len(chosen) >= count:
            break
        queue = [name]
        for one in queue:
            if one not in chosen:
                chosen[one] = family.templates[one]
                queue += sorted(family.templates[one].uses)
    return rng.sample(list(chosen.values()), len(chosen))


def _public_names(chosen: Sequence[Template], taken: frozenset[str], rng: Random) -> dict[str, str]:
    """A name for every function of the package."""
    names: dict[str, str] = {}
    for template in chosen:
        free = [n for n in (template.name, *template.synonyms) if n not in taken and n not in names.values()]
        names[template.name] = rng.choice(free)
    return names


def _homes(chosen: Sequence[Template], modules: Sequence[str], rng: Random) -> dict[str, str]:
    """A module for every function: no module empty, about equally many in each, no two that import each other."""
    for _ in range(20):
        homes = _spread([template.name for template in chosen], modules, rng)
        if _is_acyclic(chosen, homes):
            return homes
    callees_first = sorted(chosen, key=lambda template: _depth(template.name, chosen))
    return {t.name: modules[place * len(modules) // len(chosen)] for place, t in enumerate(callees_first)}


def _spread(names: Sequence[str], modules: Sequence[str], rng: Random) -> dict[str, str]:
    places = [modules[place % len(modules)] for place in range(len(names))]
    rng.shuffle(places)
    return dict(zip(names, places, strict=True))


def _depth(name: str, chosen: Sequence[Template]) -> int:
    """Length of the longest chain of calls below a function."""
    uses = next((t.uses for t in chosen if t.name == name), frozenset[str]())
    return 1 + max((_depth(other, chosen) for other in uses), default=0)


def _is_acyclic(chosen: Sequence[Template], homes: Mapping[str, str]) -> bool:
    imports = {(homes[t.name], homes[used]) for t in chosen for used in t.uses if homes[t.name] != homes[used]}
    modules = set(homes.values())
    while free := {m for m in modules if all(importer != m for importer, _ in imports)}:
        modules -= free
        imports = {(importer, imported) for importer, imported in imports if imported not in free}
    return not modules


def _function(
    template: Template, public: Mapping[str, str], inline: Mapping[str, str], module: str, rng: Random
) -> Function:
    source = rng.choice(template.variants)
    reserved = frozenset({*public, *public.values()})
    mapping = {**draw_names(source, reserved, rng), **public, **inline}
    tree = ast.parse(rename(source, mapping))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    restyle(function, rng)
    called = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return Function(
        name=public[template.name],
        module=module,
        source=ast.unparse(tree),
        arguments=template.arguments,
        uses=frozenset((called & set(public.values())) - {public[template.name]}),
        has_default=bool(function.args.defaults),
    )
