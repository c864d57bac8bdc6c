"""The stop string that ended an answer is named in it, whole and streamed, with vLLM's field."""

from __future__ import annotations

MODEL = "tiny-text"
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "abc"}], "temperature": 0, "max_tokens": 30}


def test_an_answer_names_the_stop_string_that_ended_it(client):
    whole = client.chat.completions.create(**ASKED).choices[0]
    assert "stop_reason" not in whole.model_extra
    stop = whole.message.content[5:8]
    cut = client.chat.completions.create(**ASKED, stop=["\u2603", stop]).choices[0]
    assert (cut.finish_reason, cut.model_extra["stop_reason"]) == ("stop", stop)
    assert cut.message.content == whole.message.content[: whole.message.content.index(stop)]


def test_the_last_chunk_of_a_stream_names_the_stop_string(client):
    stop = client.chat.completions.create(**ASKED).choices[0].message.content[5:8]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**ASKED, stop=[stop], stream=True)]
    assert [chunk.model_extra.get("stop_reason") for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].model_extra["stop_reason"] == stop
