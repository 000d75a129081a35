"""How many requests are admitted beside those that run, by the pages that each forecast leaves them."""

from __future__ import annotations

from engine.config import Forecast
from engine.core.request import Request
from engine.kv.manager.kv_manager import KVManager
from engine.loop.engine import Engine
from engine.sched.admission.page_forecast import AdmissionForecast, Forecaster
from engine.sched.output_lengths import OutputLengths
from engine.sched.presets import PRESETS, Preset
from tests.unit.engine.engines import make_engine, make_request, run
from tests.unit.engine.sched.planning import request

PAGE = 4


def ratio_forecast(running: list[Request]) -> AdmissionForecast:
    """SGLang's, whose ratio is 0.7 at first."""
    config = PRESETS[Preset.SGLANG].scheduler
    assert config.forecast is Forecast.NEW_TOKEN_RATIO
    kv = KVManager(64, PAGE, radix_cache=False)
    return Forecaster(config, kv, OutputLengths()).forecast(running)


def burst(pages: int) -> Engine:
    """Three requests of 12 and 28 tokens, 10 pages each at their end, submitted at once to an idle engine."""
    engine = make_engine(
        num_pages=pages, page_size=PAGE, chunk_budget=64, radix_cache=False, forecast=Forecast.NEW_TOKEN_RATIO
    )
    for id in range(3):
        engine.submit(make_request(id, [id + 1] * 12, max_tokens=28, ignore_eos=True))
    return engine


def test_a_prompt_that_needs_every_page_of_an_idle_pool_is_admitted() -> None:
    engine = make_engine(num_pages=8, page_size=PAGE, chunk_budget=16, radix_cache=False)

    run(engine, make_request(1, [1] * 31, max_tokens=1))

    assert engine.stats().preemptions == 0


def test_an_idle_pool_needs_no_headroom_for_its_first_request_alone() -> None:
    forecast = ratio_forecast([])
    first, second = request(1, 12, 100), request(2, 12, 40)
    assert forecast.headroom(first, 3) == 0

    forecast.admitted(first)

    assert forecast.headroom(second, 3) == -(-(100 + 40) // PAGE), "both were admitted by this plan"


def test_the_ratio_counts_what_running_requests_may_still_produce() -> None:
    running = request(1, 12, 100)
    running.output.extend([5] * 60)
    forecast = ratio_forecast([running])

    assert forecast.headroom(request(2, 12, 20), 3) == -(-int(0.7 * (100 - 60) + 20) // PAGE)


def test_a_request_with_output_is_counted_by_what_it_may_still_produce() -> None:
    resumed = request(2, 12, 50)
    resumed.output.extend([5] * 45)

    assert ratio_forecast([request(1, 12, 40)]).headroom(resumed, 3) == -(-int(0.7 * 40 + 5) // PAGE)


def test_the_ratio_keeps_a_burst_on_an_idle_engine_from_preempting_itself() -> None:
    engine = burst(pages=16)
    engine.step()
    assert len(engine.scheduler.running) == 1

    run(engine)

    assert engine.stats().preemptions == 0
