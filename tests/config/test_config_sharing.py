"""What holds between settings of processes that work side by side."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antwort.config import CannotStart, Secret, Settings, check_ready, keys_required
from antwort.config.checks import find_problems, of_worker
from antwort.config.settings import (
    AuthSettings,
    BackendSettings,
    BackgroundSettings,
    LocalSettings,
    MetricsSettings,
    ServerSettings,
)
from antwort.observing import metrics_for_strangers
from antwort.toolsets import is_alone
from config_kit import Operator

SHARED = Settings(database=Secret("postgresql://antwort:hush@db.example.com/antwort"), scripted=True)
PUBLIC = "10.0.0.7"


def problems(settings: Settings) -> list[str]:
    found = [str(problem) for problem in find_problems(settings)]
    assert "hush" not in "".join(found)
    return found


def shared(**server: object) -> Settings:
    return Settings(database=SHARED.database, scripted=True, server=ServerSettings(**server))  # type: ignore[arg-type] # each test its own


@pytest.mark.parametrize("memory", [False, True])
def test_several_workers_need_a_database_and_say_how_to_have_one(memory: bool) -> None:
    found = problems(Settings(scripted=True, memory=memory, server=ServerSettings(workers=2)))
    assert found == [
        (
            "server.workers above 1 needs a database that they share: the data folder, and memory, are for one "
            "process; set `database` to one of PostgreSQL, such as postgresql://antwort@localhost/antwort."
        )
    ]


def test_the_flag_is_named_where_it_asks_for_the_workers(operator: Operator) -> None:
    (said,) = operator.is_told(workers="2", scripted=True)
    assert said.startswith("--workers above 1 needs a database that they share")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(database=SHARED.database),
        Settings(
            database=SHARED.database,
            local=LocalSettings(model="m.gguf"),
            backends=(BackendSettings(name="a", url="http://a/v1"),),
        ),
    ],
    ids=["the demo model", "a file beside a backend"],
)
def test_a_model_of_its_own_is_not_loaded_once_for_each_of_several_workers(settings: Settings) -> None:
    assert problems(settings) == []
    several = replace(settings, server=ServerSettings(workers=3))
    assert problems(several) == [
        (
            "server.workers above 1 would load the model once for each of them; run it as a server of its own, such as "
            "llama-server, and name that as a backend."
        )
    ]


def test_workers_with_a_database_and_a_backend_are_right() -> None:
    assert problems(shared(workers=8, peer_port=9000, peer_url="http://antwort-0.antwort:9000")) == []


@pytest.mark.parametrize(
    "url",
    [
        "10.0.0.7:9000",
        "http://10.0.0.7",
        "ftp://a:1",
        "http://a:9000/v1",
        "http://u:hush@a:9000",
        "http://a:9000?k=hush",
        "http://:9000",
        "http://a:99999",
        "http://a:b",
        "http://a\n:9000",
        "",
    ],
)
def test_the_address_that_peers_are_told_has_a_name_and_a_port_and_nothing_else(url: str) -> None:
    assert problems(shared(peer_port=9000, peer_url=url)) == [
        "server.peer_url must be like http://10.0.0.7:9000, with a port and nothing behind it."
    ]


def test_an_address_for_peers_needs_a_port_that_stays() -> None:
    assert problems(shared(peer_url="http://a:9000")) == [
        "server.peer_url needs server.peer_port: a free port is another one each time."
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_peers_cannot_be_told_to_come_to_every_address(host: str) -> None:
    (said,) = problems(shared(peer_host=host))
    assert said == (
        f"server.peer_host is every address, and {host} is none that others could be told; "
        "name one, or set server.peer_url."
    )
    assert problems(shared(peer_host=host, peer_port=1, peer_url="http://a:1")) == []


@pytest.mark.parametrize("server", [{"peer_host": PUBLIC}, {"peer_port": 9000}, {"peer_url": "http://a:9000"}])
def test_peers_mean_nothing_to_a_process_alone(server: dict[str, str]) -> None:
    (name,) = server
    found = problems(Settings(scripted=True, server=ServerSettings(**server)))  # type: ignore[arg-type] # one of three
    assert found == [f"server.{name} means nothing without `database`: there are no other processes."]


# ---- the address of the database ----


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://localhost/antwort",
        "postgres://antwort:hush%40@db.example.com:5432/antwort?sslmode=verify-full",
        "postgresql://a:5432,b/antwort?target_session_attrs=read-write",
        "postgresql:///antwort?host=/run/postgresql&user=ada@site",
        "postgresql://[::1]:5432/antwort",
        "host=db.example.com password='hush hush'",
    ],
)
def test_addresses_of_postgresql_are_taken_as_its_own_programs_take_them(address: str) -> None:
    assert problems(Settings(scripted=True, database=Secret(address))) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("hush", "is no address of a database"),
        ("hush.db", "is no address of a database"),
        ("mysql://antwort:hush@db/antwort", "must begin with postgresql://"),
        ("sqlite:///hush.db", "must begin with postgresql://"),
        ("postgresql://antwort:hush hush@db/antwort", "has a space, or what cannot be seen, in it"),
        ("postgresql://antwort:hush@hush@db/antwort", "cannot be read"),
        ("postgresql://antwort:100%hush@db/antwort", "cannot be read"),
        ("postgresql://antwort:hush/hush@db/antwort", "has a port that is no number"),
        ("postgresql://antwort@db:hush/antwort", "has a port that is no number"),
    ],
)
def test_what_is_no_address_of_a_database_is_not_right_and_never_repeated(address: str, said: str) -> None:
    (found,) = problems(Settings(scripted=True, database=Secret(address)))
    assert found.startswith(f"database {said}")


def test_where_an_address_of_a_database_came_from_is_said(operator: Operator) -> None:
    (said,) = operator.is_told("scripted: true", set=["database=mysql://hush"])
    assert said.startswith("database must begin with postgresql://: antwort keeps responses in no other kind (--set)")
    (said,) = operator.is_told("scripted: true", {"ANTWORT_DATABASE": "mysql://hush"})
    assert "(ANTWORT_DATABASE); write one such as postgresql://" in said
    (said,) = operator.is_told("scripted: true\ndatabase: mysql://hush\n")
    assert "(antwort.yaml:2)" in said


# ---- ports ----


def with_metrics(at: int, **server: object) -> Settings:
    metrics = MetricsSettings(port=at)
    return Settings(scripted=True, database=SHARED.database, metrics=metrics, server=ServerSettings(**server))  # type: ignore[arg-type] # each test its own


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            with_metrics(8079, workers=2),
            "metrics.port is the server's own; choose another, or leave it out to share it.",
        ),
        (with_metrics(9000, workers=4, peer_port=9003), "server.peer_port is taken by metrics.port; choose another."),
        (with_metrics(9003, workers=4, peer_port=9000), "server.peer_port is taken by metrics.port; choose another."),
        (shared(peer_port=8080), "server.peer_port is taken by server.port; choose another."),
        (with_metrics(65534, workers=3), "metrics.port leaves no 3 ports, one for each worker; choose a lower one."),
        (
            shared(workers=3, peer_port=65534),
            "server.peer_port leaves no 3 ports, one for each worker; choose a lower one.",
        ),
    ],
)
def test_no_two_workers_take_the_same_port(settings: Settings, said: str) -> None:
    assert problems(settings) == [said]


@pytest.mark.parametrize(
    "settings",
    [
        with_metrics(8081, workers=4),
        with_metrics(9000, workers=3, peer_port=9003),
        with_metrics(0, workers=4, peer_port=9000),
        with_metrics(8080, port=0),
        shared(port=0, peer_port=0),
    ],
)
def test_ports_beside_each_other_are_right(settings: Settings) -> None:
    assert problems(settings) == []


# ---- keys, and who makes what ----


def test_a_way_for_peers_from_other_machines_needs_keys_as_the_front_does() -> None:
    near, far = shared(), shared(peer_host=PUBLIC)
    assert not keys_required(near)
    assert keys_required(far)
    with pytest.raises(CannotStart, match=f"Listening on {PUBLIC}, which other machines may reach, needs API keys"):
        check_ready(far)
    alone = Settings(scripted=True, server=ServerSettings(peer_host=PUBLIC))
    assert not keys_required(alone)


def test_everybody_may_be_let_in_by_the_way_of_the_peers_as_well() -> None:
    server = ServerSettings(peer_host=PUBLIC)
    settings = Settings(
        scripted=True, database=SHARED.database, server=server, auth=AuthSettings(required="never"), data="/tmp/x"
    )
    assert not keys_required(settings)
    check_ready(settings)
    assert not is_alone(settings)
    assert metrics_for_strangers(settings) == "hidden"
    assert is_alone(shared())


def test_a_process_alone_must_make_its_background_responses_itself() -> None:
    nobody = BackgroundSettings(at_once=0)
    assert problems(Settings(scripted=True, background=nobody)) == [
        (
            "background.at_once is 0: without a `database` there is no other process to make background responses; "
            "refuse them with background.enabled: false."
        )
    ]
    assert problems(Settings(scripted=True, background=BackgroundSettings(at_once=0, enabled=False))) == []
    assert problems(Settings(scripted=True, database=SHARED.database, background=nobody)) == []


def test_what_goes_on_without_its_client_needs_the_background() -> None:
    background = BackgroundSettings(on_disconnect="continue", enabled=False)
    assert problems(Settings(scripted=True, background=background)) == [
        (
            "background.on_disconnect is `continue`, and background.enabled false: what goes on without its client is "
            "made in the background; change one of them."
        )
    ]


# ---- one of several workers ----


def test_each_of_several_workers_has_the_next_ports() -> None:
    settings = replace(
        shared(peer_port=9000, peer_url="http://[fd00::7]:19000/", workers=9), metrics=MetricsSettings(port=9464)
    )
    third = of_worker(settings, 2, 4)
    assert (third.metrics.port, third.server.peer_port) == (9466, 9002)
    assert third.server.peer_url == "http://[fd00::7]:19002"
    assert third.server.workers == 4
    first = of_worker(settings, 0, 4)
    assert (first.metrics.port, first.server.peer_port, first.server.peer_url) == (9464, 9000, "http://[fd00::7]:19000")


def test_ports_that_are_not_set_stay_so() -> None:
    settings = shared(workers=2)
    assert of_worker(settings, 1, 2) == settings
    free = replace(settings, metrics=MetricsSettings(port=0))
    assert of_worker(free, 1, 2) == free
