"""What is seen of a server from outside, as the settings say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antwort.app import make_door
from antwort.config import Secret, Settings
from antwort.config.settings import (
    AuthSettings,
    BackendSettings,
    KeySettings,
    MetricsSettings,
    RouteSettings,
    RouteTarget,
    RoutingSettings,
    ServerSettings,
)
from antwort.observing import metrics_for_strangers, observe
from antwort.telemetry.endpoint import MetricsPort
from raw_http import ask

KEY = "sk-antwort-0123456789"
ADA = KeySettings(name="ada", key=Secret(KEY))
EVERYWHERE = ServerSettings(host="0.0.0.0")


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (Settings(), 200),
        (Settings(server=EVERYWHERE), 404),
        (Settings(server=EVERYWHERE, auth=AuthSettings(required="never")), 404),
        (Settings(auth=AuthSettings(required="never")), 200),
        (Settings(auth=AuthSettings(keys=(ADA,))), 404),
        (Settings(auth=AuthSettings(keys=(replace(ADA, metrics=True),))), 401),
        (Settings(metrics=MetricsSettings(key=Secret(KEY))), 401),
        (Settings(server=EVERYWHERE, metrics=MetricsSettings(port=0)), 200),
        (Settings(auth=AuthSettings(keys=(ADA,)), metrics=MetricsSettings(port=0, key=Secret(KEY))), 401),
    ],
)
async def test_the_greeting_and_the_metrics_agree_on_who_may_read_them(settings: Settings, shown: int) -> None:
    door = make_door(settings)
    seen = observe(settings, [], door)
    assert seen.metrics is not None
    port = seen.port or MetricsPort(seen.extra["/metrics"], "127.0.0.1", 0)  # type: ignore[arg-type] # it is one
    await port.start()
    try:
        status = (await ask(port.port, "GET", "/metrics")).status
    finally:
        await port.stop()
    assert status == shown == {"open": 200, "locked": 401, "hidden": 404}[metrics_for_strangers(settings)]


def test_a_port_for_the_metrics_is_on_this_machine_unless_it_is_put_elsewhere() -> None:
    settings = Settings(server=EVERYWHERE, metrics=MetricsSettings(port=0))
    seen = observe(settings, [], make_door(settings))
    assert seen.port is not None
    with seen.port._socket as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_every_name_of_a_model_that_the_operator_wrote_may_be_a_label() -> None:
    settings = Settings(
        default_model="usual",
        backends=(BackendSettings(name="b", url="http://b/v1"),),
        routing=RoutingSettings(
            aliases={"alias": "meant"},
            routes=(
                RouteSettings(model="fast", to=(RouteTarget(backend="b", model="there"), RouteTarget(backend="b"))),
            ),
        ),
    )
    seen = observe(settings, [], make_door(settings))
    assert seen.metrics is not None
    names = ["usual", "alias", "meant", "fast", "there", "made-up"]
    assert [seen.metrics.model(name) for name in names] == [*names[:-1], "other"]
