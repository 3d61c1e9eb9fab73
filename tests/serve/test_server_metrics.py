"""What /metrics says adds up to what answers say."""

import contextlib
import http.client
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from operated import COMPLETIONS, PROMPT, WAIT_S, ask, operated, wait_until

from mutations.planting import Mutation, planted

ARMS = [{"method": "ar"}, {"method": "chain"}, {"method": "ddtree", "budget": 8, "topk": 4}]
SLOTS = 4


def fields(number):
    """A request of the load: methods, lengths and numbers of choices are mixed."""
    body = {"prompt": PROMPT, "max_tokens": (20, 1, 7, 33)[number % 4], "temperature": 0}
    if number % 5 == 4:
        body |= {"n": 2, "temperature": 0.9, "seed": number}
    return body | {"speculation": ARMS[number % 3], "return_stats": True, "return_token_ids": True}


def break_off(server, number):
    """Read one event of a long stream, and leave."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    body = fields(number) | {"max_tokens": 100, "stream": True, "ignore_eos": True}
    client.request("POST", COMPLETIONS, json.dumps(body), {"content-type": "application/json"})
    client.getresponse().readline()
    client.close()


def miscounts(server):
    """Names of counts that are not, after a mixed load, what the answers say, and the engine's own
    record of those whose clients left."""
    known = ask(server.url, COMPLETIONS, fields(0) | {"max_tokens": 60})
    server.known[tuple(PROMPT)] = known.json["choices"][0]["token_ids"]
    with ThreadPoolExecutor(6) as pool:
        good = list(pool.map(lambda i: ask(server.url, COMPLETIONS, fields(i)), range(1, 16)))
        server.step_s = 0.02  # the requests must outlive their clients' leaving
        list(pool.map(lambda i: break_off(server, i), range(3)))
        bad = {"prompt": PROMPT, "max_tokens": 0}
        refusals = list(pool.map(lambda _: ask(server.url, COMPLETIONS, bad), range(2)))
    server.wait_idle()
    server.step_s = 0.0
    scores = {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 0}
    assert ask(server.url, COMPLETIONS, scores).status == 200
    assert [refusal.status for refusal in refusals] == [400, 400]
    answers = [answer.json for answer in [known, *good]]
    aborted = [w for w in server.works if getattr(w, "finish_reason", None) == "abort"]
    assert len(aborted) == 3
    found, expected = server.metrics(), expected_counts(answers, aborted)
    assert expected["accepted_at_depth_total/2"] > 20
    return {name for name in expected if found.get(f"ddtree_{name}") != expected[name]}


def expected_counts(answers, aborted):
    choices = [choice for answer in answers for choice in answer["choices"]]
    stats = [a["ddtree"] for a in answers if "ddtree" in a]
    stats += [choice["ddtree"] for choice in choices if "ddtree" in choice]
    assert len(stats) == len(choices)
    stats += [request.summary() for request in aborted]
    completion = sum(answer["usage"]["completion_tokens"] for answer in answers)
    completion += sum(len(request.output) for request in aborted)
    accepted = [a for s in stats for a, n in enumerate(s["accepted_histogram"]) for _ in range(n)]
    drafted = [s for s in stats if s["method"] != "ar"]
    rounds = {m: sum(s["rounds"] for s in stats if s["method"] == m) for m in ("ar", "chain")}
    return {
        "requests_total/length": len(choices),
        "requests_total/stop": 0,
        "requests_total/abort": len(aborted),
        "requests_total/error": 0,
        "score_jobs_total/ok": 1,
        "requests_refused_total/400": 2,
        "prompt_tokens_total": len(PROMPT) * len(stats),
        "generation_tokens_total": completion,
        "rounds_total/ar": rounds["ar"],
        "rounds_total/chain": rounds["chain"],
        "rounds_total/ddtree": sum(s["rounds"] for s in stats) - sum(rounds.values()),
        "draft_tokens_total": sum(s["tree_nodes"] for s in stats),
        "accepted_tokens_total": sum(accepted),
        "accepted_at_depth_total/1": sum(a >= 1 for a in accepted),
        "accepted_at_depth_total/2": sum(a >= 2 for a in accepted),
        "acceptance_length_count": sum(s["rounds"] for s in drafted),
        "acceptance_length_sum": sum(accepted) + sum(s["rounds"] for s in drafted),
        "time_to_first_token_seconds_count": len(stats),
        "time_per_output_token_seconds_count": sum(
            s["completion_tokens"] > 1 for s in stats[: len(choices)]
        ),
        "e2e_request_latency_seconds_count": len(choices),
        # Nothing is left of anybody.
        "requests_running": 0,
        "requests_waiting": 0,
        "kv_cache_tokens": 0,
        "kv_cache_usage_ratio": 0,
        "slots": SLOTS,
        "slots_free": SLOTS,
    }


def test_totals_are_those_of_the_answers():
    with operated() as server:
        assert miscounts(server) == set()


METRICS, GUARDS, WORKER = "ddtree.serve.metrics", "ddtree.serve.guards", "ddtree.serve.worker"
# Where, what, what instead, and the counts that show it.
BUGS = [
    (METRICS, "inc(accepted)", "inc(accepted + 1)", {"accepted_tokens_total"}),
    (METRICS, "range(1, accepted + 1)", "range(2, accepted + 1)", {"accepted_at_depth_total/1"}),
    (METRICS, "_generated.inc(tokens)", "_generated.inc()", {"generation_tokens_total"}),
    (METRICS, 'if method != "ar":', "if True:", {"acceptance_length_count"}),
    (METRICS, "observe(1 + accepted)", "observe(accepted)", {"acceptance_length_sum"}),
    (METRICS, "inc(len(work.prompt))", "inc()", {"prompt_tokens_total"}),
    (GUARDS, '["status"] >= 400', '["status"] > 400', {"requests_refused_total/400"}),
    (WORKER, '"abort")', '"error")', {"requests_total/abort", "requests_total/error"}),
]


def test_miscounts_are_seen():
    """All at once, each by its own counts."""
    with contextlib.ExitStack() as stack:
        for module in (METRICS, GUARDS, WORKER):
            edits = tuple((old, new) for where, old, new, _ in BUGS if where == module)
            stack.enter_context(planted(Mutation("miscounts", module, edits, ())))
        server = stack.enter_context(operated())
        assert miscounts(server) == set().union(*(counts for *_, counts in BUGS))


def test_every_metric_is_in_the_page():
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    with operated() as server:
        names = {name.partition("/")[0] for name in server.metrics() if name.startswith("ddtree_")}
    families = {
        re.sub("_(bucket|sum|count)$", "", name) for name in names if not name.endswith("_created")
    }
    assert len(families) > 15
    for name in families:
        assert re.search(rf"`{name.removeprefix('ddtree_')}[`{{]", page), name


def test_gauges_and_times_follow_what_happens():
    """More requests than slots."""
    body = fields(0) | {"max_tokens": 10}
    with operated() as server, ThreadPoolExecutor(6) as pool:
        server.step_s = 0.05
        server.gate.clear()
        waiting = [pool.submit(ask, server.url, COMPLETIONS, body) for _ in range(SLOTS + 2)]
        wait_until(lambda: server.worker.in_flight == SLOTS + 2)
        server.gate.set()
        engine = server.worker.engine
        wait_until(lambda: (engine.num_running, engine.num_waiting) == (SLOTS, 2))
        found = server.metrics()
        assert found["ddtree_requests_running"] == SLOTS
        assert found["ddtree_requests_waiting"] == 2
        assert found["ddtree_slots_free"] == 0
        use = engine.cache_use()
        assert found["ddtree_kv_cache_tokens"] > 0
        assert found["ddtree_kv_cache_usage_ratio"] * use.cells == found["ddtree_kv_cache_tokens"]
        assert all(answer.result().status == 200 for answer in waiting)
        found = server.metrics()
    first = "ddtree_time_to_first_token_seconds"
    # None comes sooner than a step; the last two wait until two others have had ten.
    assert found[f"{first}_sum"] >= SLOTS * 0.05 + 2 * 10 * 0.05
    assert found[f"{first}_bucket/0.025"] == 0
    assert found[f"{first}_bucket/+Inf"] == SLOTS + 2


def test_time_per_token_is_that_of_the_tokens_after_the_first():
    with operated() as server:
        server.step_s = 0.03
        start = time.monotonic()
        assert ask(server.url, COMPLETIONS, fields(0) | {"max_tokens": 6}).status == 200
        whole = time.monotonic() - start
        found = server.metrics()
    each = found["ddtree_time_per_output_token_seconds_sum"]
    assert 0.03 <= each <= whole / 5
    assert 6 * 0.03 <= found["ddtree_e2e_request_latency_seconds_sum"] <= whole
