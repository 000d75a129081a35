"""Latencies and lengths of admitted sequences, observed at their end."""

from __future__ import annotations

from router.dispatch.metrics.instruments import GAPS, LENGTHS, WAITS, Instruments
from router.dispatch.sequence import SequenceState


class EndedSequences:
    def __init__(self, new: Instruments) -> None:
        self._no_first_token = new.histogram(
            "baton_no_first_token_seconds",
            "Arrival to end, of admitted sequences that ended without a token, by outcome",
            WAITS,
            "outcome",
        )
        self._end_to_end = new.histogram("baton_e2e_seconds", "Arrival to last token", WAITS)
        self._per_token = new.histogram(
            "baton_tpot_seconds", "Mean inter-token latency of a finished sequence", GAPS
        )
        self._prompt_length = new.histogram(
            "baton_request_prompt_tokens", "Prompt length of finished sequences", LENGTHS
        )
        self._output_length = new.histogram(
            "baton_request_output_tokens", "Output length of finished sequences", LENGTHS
        )
        self._queue_time = new.histogram(
            "baton_request_queue_seconds", "Arrival to first chunk, of finished sequences", WAITS
        )
        self._prefill_time = new.histogram(
            "baton_request_prefill_seconds", "First chunk to first token, of finished sequences", WAITS
        )
        self._decode_time = new.histogram(
            "baton_request_decode_seconds", "First to last token, of finished sequences", WAITS
        )

    def observe(self, sequence: SequenceState, outcome: str, at: float) -> None:
        """`at`: on the waterfall's clock."""
        waterfall, tokens = sequence.waterfall, len(sequence.output)
        if waterfall.first_token is None:
            self._no_first_token.labels(outcome).observe(at - waterfall.arrival)
            return
        timings = waterfall.timings(at)
        if sequence.is_prefill_only:
            self._prompt_length.observe(len(sequence.prompt))
            self._queue_time.observe(timings.queue_s)
            self._prefill_time.observe(timings.prefill_s)
            return
        decode_s = timings.e2e_s - timings.ttft_s
        self._end_to_end.observe(at - waterfall.arrival)
        self._prompt_length.observe(len(sequence.prompt))
        self._output_length.observe(tokens)
        self._queue_time.observe(timings.queue_s)
        self._prefill_time.observe(timings.prefill_s)
        self._decode_time.observe(decode_s)
        if tokens > 1:
            self._per_token.observe(decode_s / (tokens - 1))
