"""What a model's process is told, and what llama.cpp makes of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from antwort.local import demo
from antwort.local.llama_server import parameters
from antwort.local.provider import LocalProvider
from antwort.local.server_options import CannotRun, NotInstalled, server_options
from local_kit import demo_file, gguf_file


def test_a_model_is_called_after_its_file_and_brings_all_else_along(tmp_path: Path) -> None:
    options = server_options(gguf_file(tmp_path / "qwen3-4b.Q4.gguf"))
    assert options == {
        "parent": os.getpid(),
        "key": "",
        "model": str(tmp_path / "qwen3-4b.Q4.gguf"),
        "name": "qwen3-4b.Q4",
        "template": None,
        "adapter": None,
        "context": 4096,
        "slots": 2,
        "threads": max(min(2, len(os.sched_getaffinity(0))), len(os.sched_getaffinity(0)) // 2),
        "temperature": None,
        "max_tokens": None,
    }


def test_what_the_operator_says_holds(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }} é", encoding="utf-8")
    options = server_options(
        gguf_file(tmp_path / "m.gguf"),
        name="house",
        template=tmp_path / "chat.jinja",
        adapter=gguf_file(tmp_path / "lora.gguf"),
        context=512,
        slots=3,
        threads=5,
    )
    assert (options["name"], options["template"]) == ("house", "{{ messages }} é")
    assert options["adapter"] == str(tmp_path / "lora.gguf")
    assert (options["context"], options["slots"], options["threads"]) == (512, 3, 5)


def test_the_demo_model_gets_what_suits_it(tmp_path: Path) -> None:
    model = demo_file(tmp_path)
    options = server_options(model)
    assert options["name"] == "smollm2-135m-instruct"
    assert (options["template"], options["temperature"], options["max_tokens"]) == (demo.TEMPLATE, 0.0, 512)
    assert options["adapter"] == str(Path(demo.__file__).with_name("smollm2-tools.gguf"))
    assert server_options(model, name="other")["name"] == "other"


def test_an_adapter_beside_the_demo_model_goes_before_that_of_the_source_tree(tmp_path: Path) -> None:
    model = demo_file(tmp_path)
    adapter = gguf_file(model.with_name("smollm2-tools.gguf"))
    assert server_options(model)["adapter"] == str(adapter)


def test_the_demo_model_runs_without_its_adapter_and_says_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "smollm2-tools.gguf" and is_file(path))
    model = demo_file(tmp_path)
    assert server_options(model)["adapter"] is None
    LocalProvider(model)
    at = model.with_name("smollm2-tools.gguf")
    problem = "the demo model calls tools badly without its adapter"
    assert caplog.messages == [f"{problem}: put smollm2-tools.gguf, from the source tree, at {at}"]


def test_the_demo_model_is_known_by_its_name_and_size(tmp_path: Path) -> None:
    assert not demo.is_demo(gguf_file(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"))


def test_llama_cpp_is_told_all_of_it(tmp_path: Path) -> None:
    options = server_options(
        gguf_file(tmp_path / "m.gguf"), adapter=gguf_file(tmp_path / "lora.gguf"), context=512, slots=3, threads=5
    )
    made = parameters({**options, "key": "hush", "template": "T", "temperature": 0.5, "max_tokens": 7})
    assert (made.model.path, made.model_alias) == (options["model"], {"m"})
    assert (made.hostnames, made.port, made.api_keys, made.ui) == (["127.0.0.1"], 0, ["hush"], False)
    assert (made.n_parallel, made.n_ctx) == (3, 1536)
    assert (made.cpuparams.n_threads, made.cpuparams_batch.n_threads) == (5, 5)
    assert (made.chat_template, made.use_jinja, made.n_predict) == ("T", True, 7)
    assert made.sampling.temp == 0.5
    assert made.n_threads_http > 3, "somebody is left to say that it is well"
    assert made.n_batch == made.n_ubatch == 128, "it hears of clients that have left between two batches"
    assert [(each.path, each.scale) for each in made.lora_adapters] == [(options["adapter"], 1.0)]


def test_what_is_not_said_is_left_to_llama_cpp(tmp_path: Path) -> None:
    made = parameters(server_options(gguf_file(tmp_path / "m.gguf")))
    assert (made.chat_template, made.n_predict, list(made.lora_adapters)) == ("", -1, [])
    assert made.sampling.temp > 0


# ---- what cannot be run ----


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"context": 0}, "context is a whole number of at least 256, not 0"),
        ({"context": 255}, "context is a whole number of at least 256, not 255"),
        ({"slots": 0}, "slots is a whole number of at least 1, not 0"),
        ({"slots": -1}, "slots is a whole number of at least 1, not -1"),
        ({"threads": 0}, "threads is a whole number of at least 1, not 0"),
        ({"threads": -4}, "threads is a whole number of at least 1, not -4"),
    ],
)
def test_numbers_that_no_model_runs_with_are_refused(tmp_path: Path, numbers: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        LocalProvider(gguf_file(tmp_path / "m.gguf"), **numbers)  # type: ignore[arg-type] # any of its numbers


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "there is no file '{}'"), (b"", "'{}' is not a GGUF file"), (b"GGML rest", "'{}' is not a GGUF file")],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "m.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CannotRun) as caught:
        server_options(file)
    assert str(caught.value) == problem.format(file)
    with pytest.raises(CannotRun):
        server_options(gguf_file(tmp_path / "good.gguf"), adapter=file)


def test_a_folder_and_a_name_that_no_file_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="cannot be read: Is a directory"):
        server_options(tmp_path)
    with pytest.raises(CannotRun, match="cannot be read: no file has such a name"):
        server_options(Path("a\0b"))


@pytest.mark.parametrize(
    ("content", "problem"), [(b"\xff", "it is not UTF-8"), (b"x" * (2**20 + 1), "is too long for a chat template")]
)
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "chat.jinja").write_bytes(content)
    with pytest.raises(CannotRun, match=problem):
        server_options(gguf_file(tmp_path / "m.gguf"), template=tmp_path / "chat.jinja")


def test_without_llama_cpp_the_command_that_brings_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as where it cannot be imported
    with pytest.raises(NotInstalled, match=r"pip install 'antwort\[demo\]'"):
        LocalProvider(gguf_file(tmp_path / "m.gguf"))


def test_processors_are_counted_where_the_system_does_not_tell_which_are_ours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert server_options(gguf_file(tmp_path / "m.gguf"))["threads"] == 5


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 2), (3, 2), (4, 2), (8, 4), (64, 32)])
def test_half_of_the_processors_work_but_at_least_two(
    processors: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    assert server_options(gguf_file(tmp_path / "m.gguf"))["threads"] == threads
