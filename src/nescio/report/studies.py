"""Studies: rows with their plan and provenance. Functions read, join, print and write them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

from nescio.analysis.significance import Runs, compare_with_best
from nescio.errors import BadInput
from nescio.files import read_json, read_list, read_small
from nescio.provenance import Provenance
from nescio.report.blocks import Definitions, Section, SectionSpec, Story, sections_of
from nescio.report.format import count_in_words, describe_best, format_number, join_names, plural
from nescio.report.frame import MEASURED_COLUMNS, Frame
from nescio.report.labels import dataset_label, group_reasons
from nescio.report.pages import write_page
from nescio.report.tables import Table, drop_repeated_legends
from nescio.report.text import json_text, make_console, print_terminal
from nescio.rows import FACTS, NETWORK_TYPES, Row, from_parquet, merge_networks, to_parquet
from nescio.work.launchers import Failure

IMAGE_OPTIONS = ("corruption_files", "degrees", "limit", "seed")  # options of plans that select or change images
ROWS, PLAN, PICTURES = "rows.parquet", "plan.json", "pictures.json"
NETWORKS, TIMES = "networks.parquet", "times.parquet"  # facts about networks; measured times of them
MANIFEST = "manifest.json"  # name → SHA-256 of the files beside it
PROVENANCE = "provenance.json"


@dataclass(kw_only=True)
class Study:
    """The rows of one run of a benchmark, with its plan as plain values and its failures."""

    benchmark: str
    version: int | None
    rows: list[Row]
    plan: dict[str, Any] = field(default_factory=dict)  # plain values; empty if unknown
    reasons: list[Row] = field(default_factory=list)  # why rows are missing
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)  # versions with which the rows were made
    parts: list[dict[str, Any]] = field(default_factory=list)  # the plans of studies that were joined
    pictures: list[Row] = field(default_factory=list)  # small pictures: "png" in base64, and columns that describe it
    networks: list[Row] = field(default_factory=list)  # facts about networks; rows name them by `network`
    times: list[Row] = field(default_factory=list)  # measured times of networks, which differ between runs
    provenance: list[Provenance] = field(default_factory=list)  # the commands that wrote it; empty if unknown
    key: str = ""  # key of the study in its store

    @property
    def frame(self) -> Frame:
        """Rows with the facts about their networks, for tables and figures."""
        facts = {
            entry["network"]: {name: value for name, value in entry.items() if name in FACTS and value is not None}
            for entry in merge_networks([*self.networks, *self.times])
        }
        return Frame(row | facts.get(row.get("network"), {}) for row in self.rows)

    @property
    def data(self) -> str:
        """The name of the data, for titles."""
        return dataset_label(next((str(row["dataset"]) for row in self.rows), str(self.plan.get("data", ""))))


# ---- files


def files(study: Study) -> dict[str, bytes]:
    """The files that a study is read from again, and their digests."""
    context = {name: getattr(study, name) for name in ("plan", "packages", "notes", "reasons")}
    context["failures"] = [asdict(failure) for failure in study.failures]
    context |= {"parts": study.parts} if study.parts else {}
    pictures = {PICTURES: json.dumps(study.pictures).encode()} if study.pictures else {}
    facts = {
        name: to_parquet(entries, NETWORK_TYPES)
        for name, entries in {NETWORKS: study.networks, TIMES: study.times}.items()
        if entries
    }
    commands = {"provenance": [asdict(command) for command in study.provenance]}
    provenance = {PROVENANCE: json_text(commands).encode()} if study.provenance else {}
    contents = {ROWS: to_parquet(study.rows), **facts, PLAN: json_text(context).encode(), **pictures, **provenance}
    return contents | {MANIFEST: manifest(contents)}


def manifest(content: Mapping[str, bytes]) -> bytes:
    """The digests of files, as JSON."""
    return json_text({name: sha256(data).hexdigest() for name, data in content.items()}).encode()


def read_study(path: str | Path, *, verified: bool = False) -> Study:
    """A study from its Parquet file of rows, or the folder that contains it, with the files beside it.

    verified  the store has compared the bytes of all files already
    """
    path = Path(path)
    path = path / ROWS if path.is_dir() else path
    extra_files = (
        [name for name in (PLAN, NETWORKS, TIMES, PICTURES, PROVENANCE) if os.path.lexists(path.parent / name)]
        if path.name == ROWS
        else []
    )
    if path.name == ROWS and not verified:
        _check_manifest(path.parent, [ROWS, *extra_files])
    rows = from_parquet(path, verified=verified)
    if not rows:
        raise BadInput(f"{path} contains no rows: nothing was measured.")
    study = Study(benchmark=str(rows[0]["benchmark"]), version=rows[0]["version"], rows=rows)
    if PLAN in extra_files:
        _read_plan(path.parent / PLAN, study)
    for name in {NETWORKS, TIMES}.intersection(extra_files):
        entries = from_parquet(path.parent / name, verified=verified, types=NETWORK_TYPES, needed=("network",))
        setattr(study, "networks" if name == NETWORKS else "times", entries)
    if PICTURES in extra_files:
        study.pictures = _check_entries(read_list(path.parent / PICTURES), path.parent / PICTURES)
    if PROVENANCE in extra_files:
        study.provenance = _read_provenances(path.parent / PROVENANCE)
    return study


def _read_provenances(path: Path) -> list[Provenance]:
    """Read the commands that made a study. They are not in the plan, because several commands can make one study."""
    try:
        return [Provenance.read(entry) for entry in read_json(path)["provenance"]]
    except (KeyError, TypeError):
        raise BadInput(f"{path} is not as nescio wrote it; rename it to report without it.") from None


def _check_manifest(folder: Path, names: Sequence[str]) -> None:
    """Raise BadInput if a file differs from its digest; the file of rows contains a checksum."""
    try:
        digests = read_json(folder / MANIFEST)
    except FileNotFoundError:
        if len(names) == 1:
            return
        raise BadInput(
            f"{folder} has {names[1]} and no {MANIFEST} to check it: copy the whole folder, or rename {names[1]} to "
            "report without it."
        ) from None
    for name in dict.fromkeys([*digests, *names]):
        if not (folder / name).is_file() or sha256(read_small(folder / name)).hexdigest() != digests.get(name):
            raise BadInput(f"{folder / name} differs from {MANIFEST}: it was changed, damaged or removed.")


def _read_plan(path: Path, study: Study) -> None:
    """Set the plan and facts of a study from its plan.json."""
    context = read_json(path)
    try:
        study.plan, study.packages = dict(context["plan"]), dict(context["packages"])
        study.reasons = _check_entries(context["reasons"], path)
        study.parts = _check_entries(context.get("parts", []), path)
        study.notes = [str(note) for note in context["notes"]]
        study.failures = [Failure(**entry) for entry in context["failures"]]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path} is not a plan that nescio wrote; rename it to report without it.") from None


def _check_entries(entries: Iterable[Any], path: Path) -> list[dict[str, Any]]:
    entries = list(entries)
    if not all(isinstance(entry, dict) for entry in entries):
        raise BadInput(f"{path} is not as nescio wrote it; rename it to report without it.")
    return entries


# ---- several studies as one


def joined(studies: Sequence[Study]) -> Study:
    """Several studies of one benchmark as one. Its plan contains the options that all studies share."""
    first, *other_studies = studies
    if not other_studies:
        return first
    for other in other_studies:
        if (other.benchmark, other.version) != (first.benchmark, first.version):
            raise BadInput(
                f"A study of {other.benchmark}, version {other.version}, cannot be joined to one of {first.benchmark}, "
                f"version {first.version}: their numbers are not comparable."
            )
    return Study(
        benchmark=first.benchmark,
        version=first.version,
        rows=_compatible([study.rows for study in studies]),
        plan=_common([study.plan for study in studies]),
        reasons=_distinct_rows(reason for study in studies for reason in study.reasons),
        failures=list(dict.fromkeys(failure for study in studies for failure in study.failures)),
        notes=list(dict.fromkeys([note for study in studies for note in study.notes] + _difference_notes(studies))),
        packages=_common([study.packages for study in studies]),
        parts=[plan for study in studies for plan in study.parts or [study.plan]],
        pictures=[picture for study in studies for picture in study.pictures],
        networks=_same_facts([study.networks for study in studies]),
        times=merge_networks(row for study in studies for row in study.times),
        provenance=[command for study in studies for command in study.provenance],
    )


def _compatible(studies: Iterable[Sequence[Row]]) -> list[Row]:
    """The distinct rows of all studies; refuse two values for one result, as tables would average them."""
    row_of: dict[Any, Row] = {}
    for rows in studies:
        for row in rows:
            identity = tuple(value for name, value in row.items() if name not in MEASURED_COLUMNS)
            if row_of.setdefault(identity, row)["value"] != row["value"]:
                columns = [row[name] for name in ("method", "backbone", "dataset", "split", "measure", "metric")]
                raise BadInput(
                    f"Two studies differ in {', '.join(str(cell) for cell in columns if cell is not None)}: "
                    f"{row_of[identity]['value']:.6g} and {row['value']:.6g}. Join studies of other methods or other "
                    "data, or report them one by one."
                )
    return list(row_of.values())


def _same_facts(studies: Iterable[Sequence[Row]]) -> list[Row]:
    """The facts about the networks of all studies; refuse two values of one fact."""
    networks_by_id: dict[str, Row] = {}
    for entry in (entry for networks in studies for entry in networks):
        known_entry = networks_by_id.setdefault(entry["network"], entry)
        for name in FACTS:
            pair = known_entry.get(name), entry.get(name)
            if name != "undertrained" and None not in pair and pair[0] != pair[1]:
                raise BadInput(
                    f"Two studies differ in {name} of {entry.get('method')} {entry.get('backbone')}: {pair[0]} and "
                    f"{pair[1]}. Join studies of other methods or other data, or report them one by one."
                )
    return merge_networks(entry for networks in studies for entry in networks)


def _difference_notes(studies: Sequence[Study]) -> list[str]:
    """Notes on studies of the same data with different training budgets or augmentations."""
    values_by_option: dict[tuple[str, str], list[Any]] = {}
    for plan in [plan for study in studies for plan in study.parts or [study.plan]]:
        options = {name: plan[name] for name in IMAGE_OPTIONS if name in plan} | (plan.get("training") or {})
        for name, value in options.items():
            if value not in (values := values_by_option.setdefault((str(plan.get("data")), name), [])):
                values.append(value)
    return [
        f"The studies of {dataset_label(data)} differ in --{name.replace('_', '-')}: "
        f"{' and '.join(map(str, values))}. Their lines differ in more than their methods."
        for (data, name), values in values_by_option.items()
        if len(values) > 1
    ]


def _distinct_rows(rows: Iterable[Row]) -> list[Row]:
    return list({tuple(sorted((key, repr(value)) for key, value in row.items())): row for row in rows}.values())


def _common(plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, *others = plans
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}


# ---- the story of a study


def describe_best_line(
    label: str, lines: Mapping[str, Runs], *, noise: Mapping[str, float] | None = None, repetitions: str = "seeds"
) -> str:
    """The line with the highest mean, and the lines that are not significantly different or the next, with the test.

    label  what is highest, such as AUROC
    lines  name → repetition → value
    noise  see `compare_with_best`
    """
    verdict = compare_with_best(lines, noise=noise)
    mean = fmean(lines[verdict.best].values())
    sentence = f"Highest {label}: {verdict.best}, {format_number(mean, 3)}."
    if len(lines) < 2:
        return sentence
    count = max(map(len, lines.values()))
    repetition_text = f"{count_in_words(count)} {repetitions}" if count > 1 else f"one {repetitions.removesuffix('s')}"
    if not verdict.tests:
        return f"{sentence} Differences were not tested: {repetition_text}."
    tests = join_names(verdict.tests) + (f" over {repetition_text}" if count > 1 else "")
    return f"{sentence} {describe_best(verdict.differences).removesuffix('.')} ({tests}, Holm's adjustment)."


def story_of(
    study: Study,
    title: str,
    lead: Sequence[str],
    sections: Iterable[SectionSpec],
    *,
    gaps: Sequence[tuple[str, str]] | None = None,
) -> Story:
    """A benchmark's story: sections, failures, missing results, and provenance.

    sections  (link, title, results of reports, intro); empty blocks and sections are left out
    gaps      (what, reason) of missing rows (default: all reasons of the study)
    """
    failures = [(failure.name, failure.reason) for failure in study.failures]
    gaps = group_reasons(study.reasons) if gaps is None else gaps
    notes = " ".join(study.notes)
    all_sections = sections_of([*sections, ("Failures", "Failed steps", [Definitions(failures)])])
    if gaps or notes:
        all_sections.append(Section("Gaps", "Missing results", [Definitions(gaps)] if gaps else [], notes))
    sentences = [f"{plural(len(failures), 'step')} failed: see below."] if failures else []
    return Story(title, [*lead, *sentences], all_sections, [_provenance_text(study)])


def _provenance_text(study: Study) -> str:
    """Versions of the benchmark and of the packages."""
    from nescio import __version__

    by = " and ".join(f"{name} {study.packages[name]}" for name in ("nescio", "torch") if name in study.packages)
    versions = f"Benchmark {study.benchmark}, version {study.version}. Page by nescio {__version__}."
    return f"{versions}{f' Rows computed with {by}.' if by else ''}"


def print_story(study: Study, story: Story, first_look: Sequence[Table]) -> None:
    """Print a summary: verdicts, a few tables, and notes."""
    from rich.text import Text

    console = make_console()
    tables = drop_repeated_legends(table for table in first_look if table)
    if not tables:
        console.print(Text("There is nothing to show: no step is finished."))
        return
    console.print(Text(" ".join(story.lead)), end="\n\n")
    print_terminal(tables, console)
    for note in study.notes:
        console.print(Text(f"{note}\n", "dim"))


def write_story(study: Study, story: Story, folder: str | Path, others: Mapping[str, str] | None = None) -> Path:
    """Write the page, rows, tables and plan of a study to a folder; return the path of the page.

    others  pages that this one links to: address → name
    """
    return write_page(story, folder, rows=study.rows, files=files(study), others=others)
