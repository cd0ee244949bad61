from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ako_jobs import ako
from ako_jobs.built_in import BUILT_IN
from ako_jobs.jobs import load_job, prepare
from ako_jobs.resume import resumed
from ako_jobs.run import Heard
from dataflow import JobEvent, JobSpec, Resume
from dataflow.errors import BundleError, ConfigError, DataError, GraphError, PlanError
from dataflow.reports import NodeStatistics

JOB = """\
from ako_jobs import ako
from dataflow import Emissions, In, Operator, Out
from operators.messages import Batch


class Same(Operator):
    batches = In(Batch)
    same = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        yield self.same(batch)


class Config(ako.Config):
    extra: int = 1


def build(config: Config):
    return ako.build(config).insert_after("source", Same())
"""


@pytest.fixture(autouse=True)
def same_imports(tmp_path: Path) -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "my_job.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("name", BUILT_IN)
def test_prepare_built_in_job_gives_its_graph_without_bundle(name: str) -> None:
    prepared = prepare(load_job(name), {"seed": "7", "target": "0.9"}, nodes=3)
    assert (prepared.spec.name, prepared.spec.nodes, prepared.spec.seed) == (name, 3, 7)
    assert prepared.spec.graph.name == name
    assert prepared.spec.stop.target == 0.9
    assert prepared.spec.config["target"] == 0.9
    assert prepared.bundle is None


@pytest.mark.parametrize(
    ("job", "settings", "note"),
    [
        ("ako", {}, "effective learning rate: 4 workers x lr 0.02 = 0.08 per round (updates add up)"),
        ("parameter_server", {}, "effective learning rate: 3 workers x lr 0.02 = 0.06 per round (updates add up)"),
        (
            "ako",
            {"local_steps": "3"},
            "effective learning rate: 4 workers x 3 local steps x lr 0.02 = 0.24 per round (updates add up)",
        ),
        (
            "all_to_all",
            {"consistency": "bsp", "local_steps": "3"},
            "effective learning rate: 3 local steps x lr 0.02 = 0.06 per step, of the mean gradient of 4 workers",
        ),
        (
            "parameter_server",
            {"consistency": "bsp", "servers": "all"},
            "effective learning rate: 0.02 per step, of the mean gradient of 4 workers",
        ),
        ("all_to_all", {"lr": "0.5"}, "effective learning rate: 4 workers x lr 0.5 = 2 per round (updates add up)"),
        (
            "all_to_all",
            {"consistency": "bsp"},
            "effective learning rate: 0.02 per step, of the mean gradient of 4 workers",
        ),
        (
            "ako",
            {"momentum": "0.9"},
            "effective learning rate: 4 workers x lr 0.02 = 0.08 per round (updates add up); "
            "with momentum 0.9, 10 times that in the long run",
        ),
        (
            "all_to_all",
            {"consistency": "bsp", "momentum": "0.75"},
            "effective learning rate: 0.02 per step, of the mean gradient of 4 workers; "
            "with momentum 0.75, 4 times that in the long run",
        ),
    ],
)
def test_prepare_says_the_effective_learning_rate(job: str, settings: dict[str, str], note: str) -> None:
    assert prepare(load_job(job), settings, nodes=4).spec.warnings == (note,)


def test_prepare_refuses_local_steps_for_more_images_than_a_worker_has() -> None:
    settings = {"batch": "100", "local_steps": "3", "holdout": "0"}  # of 1,442 training images
    assert prepare(load_job("ako"), settings, nodes=4).spec.nodes == 4
    said = r"^local_steps make gradients of 300 images, and a worker's share is 288; use fewer local_steps, a smaller"
    with pytest.raises(ConfigError, match=said):
        prepare(load_job("ako"), settings, nodes=5)
    assert prepare(load_job("ako"), {"batch": "300", "holdout": "0"}, nodes=5).spec.nodes == 5


def test_load_job_from_file_names_operators_by_the_files_stem_and_packs_its_folder(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("N = 1\n")
    (tmp_path / "notes.txt").write_text("not code\n")
    prepared = prepare(load_job(write(tmp_path, JOB)), {"extra": "3"}, nodes=2)
    assert prepared.spec.name == "my_job"
    assert prepared.spec.config["extra"] == 3
    assert prepared.graph.operator("same").kind == "my_job:Same"
    assert prepared.bundle is not None
    with zipfile.ZipFile(io.BytesIO(prepared.bundle.data)) as archive:
        assert sorted(archive.namelist()) == ["helper.py", "my_job.py"]


def test_prepare_job_file_called_like_a_built_in_job_is_not_taken_for_it(tmp_path: Path) -> None:
    mine = prepare(load_job(write(tmp_path, JOB, "tree.py")), {}, nodes=2)
    assert mine.spec.name == "tree:build"
    with pytest.raises(ConfigError, match=r"the job's code is needed to change its settings .got tree:build.*--job"):
        resumed(mine.spec, Resume(job="3f2a"), settings={"epochs": "2"})
    again = resumed(mine.spec, Resume(job="3f2a"), settings={"epochs": "2"}, job=str(tmp_path / "tree.py"))
    assert (again.spec.name, again.spec.config["epochs"], again.spec.config["extra"]) == ("tree:build", 2, 1)
    assert prepare(load_job("ako_jobs.tree:build"), {}, nodes=2).spec.name == "tree"


@pytest.mark.parametrize(
    ("job", "settings", "nodes", "said"),
    [
        ("ako", {"min_nodes": "3"}, 2, "min_nodes is more than the job's 2 nodes"),
        (
            "all_to_all",
            {"consistency": "bsp", "max_nodes": "4", "warmup": "1"},
            2,
            "a learning rate that changes goes by",
        ),
        ("sparse", {"warm_up_epochs": "1", "warm_up_nodes": "3"}, 2, "3 nodes cannot begin where there are 2"),
        ("ako", {}, 1500, "every node needs a training image, and 1500 nodes share 1298"),
    ],
)
def test_resume_on_nodes_that_the_job_does_not_fit_is_refused(
    job: str, settings: dict[str, str], nodes: int, said: str
) -> None:
    before = prepare(load_job(job), settings, nodes=4).spec
    assert resumed(before, Resume(job="3f2a")).spec.nodes == 4
    with pytest.raises(ConfigError, match=said):
        resumed(before, Resume(job="3f2a"), nodes=nodes)


def test_resume_opens_no_data_with_code_that_a_job_merely_names() -> None:
    before = prepare(load_job("ako"), {}, nodes=4).spec
    named = before.model_dump_json().replace("ako_jobs.datasets:load", "nobody.knows:this")
    assert "nobody.knows:this" in named
    assert resumed(JobSpec.model_validate_json(named), Resume(job="3f2a"), nodes=2).spec.nodes == 2


def test_resume_with_code_and_without_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match="say which settings change, or leave out --job"):
        resumed(prepare(load_job("ako"), {}, nodes=4).spec, Resume(job="3f2a"), job="my_job.py")


def test_load_job_second_file_of_the_same_name_is_not_the_first(tmp_path: Path) -> None:
    for name, default in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numbers_of_mine.py").write_text(f"DEFAULT = {default}\n")
        write(tmp_path / name, "from numbers_of_mine import DEFAULT\n" + JOB.replace("int = 1", "int = DEFAULT"))
    first, second = (load_job(str(tmp_path / name / "my_job.py")) for name in ("a", "b"))
    assert first.config.model_fields["extra"].default == 1
    assert second.config.model_fields["extra"].default == 2


def test_load_job_include_travels_with_it(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "table.csv").write_text("1,2\n")
    job = load_job(write(tmp_path, JOB + 'INCLUDE = ("lib",)\n'))
    bundle = prepare(job, {}, nodes=1).bundle
    assert bundle is not None
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        assert sorted(archive.namelist()) == ["lib/table.csv", "my_job.py"]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd"])
def test_prepare_include_that_leads_out_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    job = load_job(write(tmp_path, JOB + f"INCLUDE = ({path!r},)\n"))
    with pytest.raises(BundleError, match="leads out of the bundle"):
        prepare(job, {}, nodes=1)


def test_load_job_module_and_function_is_found() -> None:
    job = load_job("ako_jobs.ako:build")
    assert (job.name, job.config, job.folder) == ("ako", ako.Config, None)


def test_load_job_functions_annotation_gives_its_config(tmp_path: Path) -> None:
    text = (
        JOB
        + "\n\nclass Other(ako.Config):\n    more: int = 2\n\n\ndef other(config: Other):\n    return build(config)\n"
    )
    assert "more" in load_job(write(tmp_path, text) + ":other").config.model_fields


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("akoo", "there is no such job .got akoo.; did you mean 'ako'"),
        (
            "nowhere/my_job.py",
            "there is no such job file .got nowhere/my_job.py.; check its path; a relative one",
        ),
        ("no_such_module:build", "there is no such module .got no_such_module"),
        ("ako_jobs.ako:biuld", "no function 'biuld'"),
        ("../ako:build", "there is no such job"),
    ],
)
def test_load_job_unknown_name_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        load_job(text)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("stem", ["queue", "numpy", "operators"])
def test_load_job_file_that_hides_a_module_is_refused(tmp_path: Path, stem: str) -> None:
    with pytest.raises(ConfigError, match=rf"{stem}.py would hide the module '{stem}'"):
        load_job(write(tmp_path, JOB, f"{stem}.py"))


def test_load_job_neighbour_that_hides_a_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("")
    with pytest.raises(ConfigError, match=r"types.py would hide the module 'types' .Python's own."):
        load_job(write(tmp_path, JOB))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import ako_jobs\nx = undefined_name\n", r"NameError: name 'undefined_name' is not defined at .*my_job.py:2"),
        ("def build(:\n", r"SyntaxError: .* at .*my_job.py:1"),
        ("import no_such_module\n", r"ModuleNotFoundError: .* at .*my_job.py:1"),
        ("def build(config):\n    return 1\n", r"has no Config at .*my_job.py:1"),
        ("class Config:\n    pass\ndef build(config):\n    return 1\n", r"has a Config that is no TrainingConfig .*:3"),
        (JOB.replace("def build", "def bauen"), "has no function 'build'"),
        (JOB.replace("process(self, batch", "process(self, batch, nothing"), r"asks for 'nothing'.* at .*my_job.py:6"),
    ],
)
def test_load_job_broken_file_is_one_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        load_job(write(tmp_path, text))
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lrr": "1"}, "unknown key .got lrr.; did you mean 'lr'"),
        ({"lr": "fast"}, "lr: must be a positive number .got fast"),
        ({"epochs": "-1"}, "epochs: must be a positive number .got -1"),
        ({"p": "many"}, "p: must be an integer >= 1 and <= 1000000 or auto .got many"),
        ({"model": "huge"}, "there is no such model .got huge"),
    ],
)
def test_prepare_wrong_setting_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(load_job("ako"), settings, nodes=2)


def test_prepare_more_nodes_needed_than_there_are_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^min_nodes is more than the job's 2 nodes \(got 9\); use min_nodes=2 or less"
    ):
        prepare(load_job("ako"), {"min_nodes": "9"}, nodes=2)


def test_prepare_missing_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ako data fetch mnist"):
        prepare(load_job("ako"), {"data": "mnist", "data_dir": str(tmp_path)}, nodes=2)


def test_prepare_too_few_nodes_is_refused() -> None:
    with pytest.raises(PlanError, match="give --nodes 2 or more"):
        prepare(load_job("parameter_server"), {}, nodes=1)


def test_prepare_graph_with_a_type_error_names_ports_and_line(tmp_path: Path) -> None:
    wrong = JOB.replace('.insert_after("source", Same())', '.insert_after("validate.predictions", Same())')
    wrong = wrong.replace(
        "return ako.build(config)", 'return ako.build(config).with_operator("other", Same(), role="worker")'
    ).replace('.insert_after("validate.predictions", Same())', '.connect("validate.predictions", "other")')
    with pytest.raises(GraphError, match=r"validate.predictions.*other.*my_job.py:19") as raised:
        prepare(load_job(write(tmp_path, wrong)), {}, nodes=2)
    assert raised.value.exit_code == 2


def test_prepare_build_that_raises_names_the_users_line(tmp_path: Path) -> None:
    wrong = JOB.replace("    return ako", "    1 / 0\n    return ako")
    with pytest.raises(ConfigError, match=r"'my_job' raised ZeroDivisionError: division by zero at .*my_job.py:19"):
        prepare(load_job(write(tmp_path, wrong)), {}, nodes=2)


def test_prepare_operator_that_refuses_a_parameter_says_so_in_one_line(tmp_path: Path) -> None:
    wrong = JOB.replace("    return ako", '    Same.model_validate({"pool_size": 3})\n    return ako')
    said = (
        r"'my_job' raised ValidationError: Same.pool_size: Extra inputs are not permitted \(got 3\) at .*my_job.py:19$"
    )
    with pytest.raises(ConfigError, match=said):
        prepare(load_job(write(tmp_path, wrong)), {}, nodes=2)


def test_prepare_build_without_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"builds no LogicalGraph .got NoneType. at .*my_job.py:18"):
        prepare(load_job(write(tmp_path, JOB.replace("return ako", "ako"))), {}, nodes=2)


@pytest.mark.parametrize("call", ["raise SystemExit(0)", "raise SystemExit('bye')"])
def test_load_job_file_that_leaves_is_refused(tmp_path: Path, call: str) -> None:
    with pytest.raises(ConfigError, match=r"my_job.py raised SystemExit: .* at .*my_job.py:1$"):
        load_job(write(tmp_path, f"{call}\n{JOB}"))


@pytest.mark.parametrize("include", ['"words.txt"', "5", "(5,)"])
def test_load_job_include_that_is_no_tuple_of_paths_is_refused(tmp_path: Path, include: str) -> None:
    with pytest.raises(ConfigError, match="INCLUDE is not a tuple of paths"):
        load_job(write(tmp_path, f"{JOB}\nINCLUDE = {include}\n"))


@pytest.mark.parametrize("extra", ['seed: str = "abc"', "extra: type = int"])
def test_prepare_configuration_that_cannot_travel_is_refused(tmp_path: Path, extra: str) -> None:
    with pytest.raises(ConfigError, match="the configuration of the job 'my_job' raised"):
        prepare(load_job(write(tmp_path, JOB.replace("extra: int = 1", extra))), {}, nodes=2)


def test_prepare_more_nodes_than_training_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="every node needs a training image, and 1299 nodes share 1298"):
        prepare(load_job("ako"), {}, nodes=1299)


def test_prepare_holdout_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="holdout=0"):
        prepare(load_job("ako"), {"holdout": "0.9999", "warm_start": "0"}, nodes=2)


@pytest.mark.parametrize("key", ["lr", "epochs", "time", "warmup", "momentum"])
def test_prepare_infinite_setting_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: must be a"):
        prepare(load_job("ako"), {key: "inf"}, nodes=2)


def test_load_job_whose_file_needs_pytorch_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_torch_job.py").write_text("from torch import nn\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"needs_torch_job.py raised ModuleNotFoundError.*pip install 'ako-dataflow"):
        load_job(str(tmp_path / "needs_torch_job.py"))


def test_heard_tells_the_newest_statistics_of_all_but_the_last_incarnation_of_a_node():
    heard = Heard(None)
    for number, (node, incarnation, steps) in enumerate([(0, 0, 1), (0, 0, 2), (1, 0, 3), (0, 1, 4), (0, 2, 5)]):
        told = NodeStatistics(node, incarnation=incarnation, steps=steps)
        heard.handle(JobEvent(number, 0.0, 0.0, statistics=told))
    last = [NodeStatistics(0, incarnation=2, steps=6), NodeStatistics(1, steps=3)]
    assert [(each.node, each.incarnation, each.steps) for each in heard.series.newest.earlier(last)] == [
        (0, 0, 2),
        (0, 1, 4),
    ]


def test_heard_tells_what_all_nodes_counted_before_a_job_began_again_once_whatever_became_of_it():
    def said(heard: Heard, **what: Any) -> None:
        heard.handle(JobEvent(0, 0.0, 0.0, **what))

    heard = Heard(None)
    said(heard, state="DEPLOYING")
    for node in range(2):
        said(heard, statistics=NodeStatistics(node, steps=50))
    said(heard, state="PENDING")
    assert sum(each.steps for each in heard.series.newest.earlier([])) == 100  # if it is cancelled now
    said(heard, state="DEPLOYING")
    for node in range(2):
        said(heard, statistics=NodeStatistics(node, steps=7))
    last = [NodeStatistics(node, steps=7) for node in range(2)]
    assert [(each.node, each.steps) for each in heard.series.newest.earlier(last)] == [(0, 50), (1, 50)]
