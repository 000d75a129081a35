"""Pages by kind of KV group: those of windows end with the window, the others grow with the context."""

from __future__ import annotations

from common.kv_groups import KVGroup
from engine.kv.manager.page_audit import GroupPages
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request, run

GROUPS = (KVGroup((0,)), KVGroup((1,), 8), KVGroup((2,), 8))
PROMPT = list(range(1, 41))


def windowed(radix_cache: bool = True) -> Engine:
    return make_engine(groups=GROUPS, num_pages=128, page_size=4, radix_cache=radix_cache)


def test_a_request_holds_pages_of_its_whole_context_and_of_each_window() -> None:
    engine = windowed(radix_cache=False)
    request = make_request(0, PROMPT, max_tokens=8)
    engine.submit(request)
    while not request.output:
        engine.step()
    full, window = engine.pages_by_kind()
    assert (full.kind, window.kind) == ("full", "window-8")
    assert full.held == len(request.pages) // len(GROUPS) >= len(PROMPT) // 4
    assert 0 < window.held < 2 * full.held
    assert full.held + window.held == engine.check_pages().held
    run(engine)
    assert engine.pages_by_kind() == [GroupPages("full", 0, 0), GroupPages("window-8", 0, 0)]


def test_what_ends_in_the_cache_is_counted_there() -> None:
    engine = windowed()
    run(engine, make_request(0, PROMPT))
    full, window = engine.pages_by_kind()
    assert (full.held, window.held) == (0, 0)
    assert full.cached == (len(PROMPT) + 7) // 4
    assert full.cached + window.cached == engine.check_pages().cached


def test_one_kind_has_the_pool_s_counts() -> None:
    engine = make_engine()
    run(engine, make_request(0, PROMPT))
    assert engine.pages_by_kind() == [GroupPages("full", 0, engine.check_pages().cached)]
