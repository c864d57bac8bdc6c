"""Encoders of the text service over HTTP: five tiny models beside the language model, each against Transformers."""

from __future__ import annotations

import base64
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.processes import alive
from tests.services.text.encoder_directories import make_all, settings_of
from tests.waiting import until

TEXTS = ["red cat", "green dog house", "river", "stone tree blue cat dog"]
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "red", "green", "blue", "cat", "dog", "house", "tree", "river", "stone"]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_all(tmp_path_factory.mktemp("encoders"))


@pytest.fixture(scope="module")
def service(start_service, tiny_text_model, directories):
    with start_service(
        "text",
        text__model=str(tiny_text_model),
        text__engine__threads="1",
        text__encoders=settings_of(directories),
        text__encoder_engine__threads="1",
        text__encoder_engine__max_texts="50",
        text__encoder_engine__max_request_tokens="4000",
        text__encoder_engine__max_batch_tokens="64",
        wait=False,
    ) as running:
        running.wait_ready(300)  # two engines start, maybe beside other tests
        yield running


@pytest.fixture
def ask(service):
    """`ask(path, **body)`: the answer's JSON; `status` is what it must be."""

    def asked(path: str, status: int = 200, **body):
        answer = httpx.post(f"{service.url}{path}", json=body, timeout=300)
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["error"]

    return asked


def ids_of(text: str) -> list[int]:
    return [1, *(WORDS.index(word) for word in text.split()), 2]


def hidden_states(directory: Path, ids: list[int]) -> np.ndarray:
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(directory).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()


def logits(directory: Path, ids: list[int], types: list[int] | None = None) -> np.ndarray:
    import torch
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    more = {"token_type_ids": torch.tensor([types])} if types else {}
    with torch.inference_mode():
        return model(torch.tensor([ids]), **more).logits[0].numpy().astype(np.float64)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


def vectors_of(answer) -> np.ndarray:
    return np.array([entry["embedding"] for entry in answer["data"]])


def test_models_are_listed_with_their_tasks(service, ask) -> None:
    listed = httpx.get(f"{service.url}/v1/models").json()["data"]
    assert {model["id"]: model["card"]["tasks"] for model in listed} == {
        "tiny-text": ["chat", "completions", "embeddings"],
        "bi": ["embeddings", "score"],
        "cross": ["rerank", "score"],
        "yes-no": ["rerank", "score"],
        "moods": ["classify"],
        "guard": ["classify", "moderations"],
    }
    assert service.parts() == {"engine": "ok", "encoders": "ok"}


def test_embeddings_are_the_normalized_means_of_transformers_hidden_states(ask, directories) -> None:
    answer = ask("/v1/embeddings", model="bi", input=TEXTS)
    expected = [unit(hidden_states(directories["bi"], ids_of(text)).mean(axis=0)) for text in TEXTS]
    np.testing.assert_allclose(vectors_of(answer), expected, atol=1e-5)
    count = sum(len(ids_of(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}


def test_input_type_and_prompt_name_put_the_models_prompt_before_the_texts(ask) -> None:
    prompted = vectors_of(ask("/v1/embeddings", model="bi", input=["red cat"], input_type="query"))
    np.testing.assert_allclose(
        prompted, vectors_of(ask("/v1/embeddings", model="bi", input=["one red cat"])), atol=1e-6
    )
    for named in ({"input_type": "search_document"}, {"prompt_name": "document"}):
        found = vectors_of(ask("/v1/embeddings", model="bi", input="red cat", **named))
        np.testing.assert_allclose(found, vectors_of(ask("/v1/embeddings", model="bi", input="two red cat")), atol=1e-6)
    plain = vectors_of(ask("/v1/embeddings", model="bi", input="red cat"))
    np.testing.assert_allclose(
        vectors_of(ask("/v1/embeddings", model="bi", input="red cat", input_type="clustering")), plain, atol=1e-6
    )
    assert "it has: query, document" in ask("/v1/embeddings", 400, model="bi", input="x", prompt_name="no")["message"]
    assert "input_type" in ask("/v1/embeddings", 400, model="bi", input="x", input_type="nonsense")["message"]


def test_dimensions_cut_and_normalize_where_the_model_names_them(ask) -> None:
    whole = vectors_of(ask("/v1/embeddings", model="bi", input=TEXTS))
    cut = vectors_of(ask("/v1/embeddings", model="bi", input=TEXTS, dimensions=8))
    np.testing.assert_allclose(cut, [unit(vector[:8]) for vector in whole], atol=1e-6)
    refused = ask("/v1/embeddings", 400, model="bi", input=TEXTS, dimensions=9)
    assert (refused["param"], refused["message"]) == ("dimensions", "`dimensions` is 9; 'bi' has 8, 16")


def test_base64_and_token_ids(ask) -> None:
    expected = vectors_of(ask("/v1/embeddings", model="bi", input="red cat"))
    encoded = ask("/v1/embeddings", model="bi", input=ids_of("red cat"), encoding_format="base64")["data"][0]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(encoded["embedding"]), "<f4")[None], expected, atol=1e-6)
    lists = vectors_of(ask("/v1/embeddings", model="bi", input=[ids_of("river"), ids_of("red cat")]))
    np.testing.assert_allclose(lists[1:], expected, atol=1e-6)
    foreign = ask("/v1/embeddings", 400, model="bi", input=[[1, 9000]])
    assert "tokens of another model mean nothing" in foreign["message"]
    assert ask("/v1/embeddings", 400, model="bi", input=[5, "a"])["param"] == "input"


def test_long_texts_are_refused_or_cut_where_the_request_says_so(ask) -> None:
    long = " ".join(["red", "cat"] * 20)
    refused = ask("/v1/embeddings", 400, model="bi", input=long)
    assert (refused["code"], refused["param"]) == ("context_length_exceeded", "input")
    assert "42 tokens; the model takes 24" in refused["message"]
    kept = " ".join(["red", "cat"] * 11)
    for how in ({"truncate": True}, {"truncate": "END"}, {"truncate_prompt_tokens": -1}):
        found = vectors_of(ask("/v1/embeddings", model="bi", input=long, **how))
        np.testing.assert_allclose(found, vectors_of(ask("/v1/embeddings", model="bi", input=kept)), atol=1e-6)
    four = vectors_of(ask("/v1/embeddings", model="bi", input="red green blue cat", truncate_prompt_tokens=4))
    np.testing.assert_allclose(four, vectors_of(ask("/v1/embeddings", model="bi", input="red green")), atol=1e-6)
    last = ask("/v1/embeddings", model="bi", input="red green blue cat", truncate_prompt_tokens=4, truncate="START")
    np.testing.assert_allclose(
        vectors_of(last), vectors_of(ask("/v1/embeddings", model="bi", input="blue cat")), atol=1e-6
    )
    assert ask("/v1/embeddings", 400, model="bi", input="x", truncate_prompt_tokens=25)["param"] == (
        "truncate_prompt_tokens"
    )


def test_the_language_models_embeddings_stay_and_refuse_what_only_encoders_know(ask) -> None:
    assert len(ask("/v1/embeddings", model="tiny-text", input="abc")["data"][0]["embedding"]) == 32
    refused = ask("/v1/embeddings", 400, model="tiny-text", input="abc", input_type="query")
    assert refused["param"] == "input_type"


def test_the_language_model_cuts_the_end_of_long_texts_where_the_request_says_so(ask) -> None:
    long = "abcdefgh" * 600
    refused = ask("/v1/embeddings", 400, model="tiny-text", input=long)
    assert (refused["code"], refused["param"]) == ("context_length_exceeded", "input")
    whole = ask("/v1/embeddings", model="tiny-text", input=long[:4096])
    for how in (True, "END"):
        cut = ask("/v1/embeddings", model="tiny-text", input=[long, "abc"], truncate=how)
        assert cut["usage"]["prompt_tokens"] == 4096 + 3
        np.testing.assert_allclose(vectors_of(cut)[:1], vectors_of(whole), atol=1e-5)
    ids = [97] * 4097
    assert ask("/v1/embeddings", model="tiny-text", input=ids, truncate=True)["usage"]["prompt_tokens"] == 4096
    assert ask("/v1/embeddings", 400, model="tiny-text", input="a", truncate="START")["param"] == "truncate"


def test_a_cross_encoder_ranks_by_the_sigmoid_of_its_logit(ask, directories) -> None:
    answer = ask("/v1/rerank", model="cross", query="red cat", documents=TEXTS)
    query = ids_of("red cat")
    expected = []
    for text in TEXTS:
        document = ids_of(text)[1:]
        types = [0] * len(query) + [1] * len(document)
        expected.append(float(sigmoid(logits(directories["cross"], query + document, types)[0])))
    order = sorted(range(len(TEXTS)), key=lambda index: -expected[index])
    assert [result["index"] for result in answer["results"]] == order
    found = [result["relevance_score"] for result in answer["results"]]
    np.testing.assert_allclose(found, [expected[index] for index in order], atol=1e-5)
    assert [result["document"]["text"] for result in answer["results"]] == [TEXTS[index] for index in order]


def test_rerank_has_coheres_and_jinas_shapes(ask) -> None:
    given = [{"text": "red cat", "id": 7}, "river"]
    jina = ask("/v1/rerank", model="cross", query="red", documents=given, top_n=1, return_documents=True)
    assert len(jina["results"]) == 1
    assert jina["usage"]["total_tokens"] > 0
    both = ask("/rerank", model="cross", query="red", documents=given)["results"]
    assert {"text": "red cat", "id": 7} in [result["document"] for result in both]
    cohere = ask("/v2/rerank", model="cross", query="red", documents=["red cat", "river"])
    assert all(result.keys() == {"index", "relevance_score"} for result in cohere["results"])
    assert cohere["meta"]["api_version"] == {"version": "2"}
    assert cohere["meta"]["billed_units"] == {"search_units": 1}
    assert ask("/v1/rerank", 400, model="cross", query="red", documents=[{"title": "x"}])["param"] == "documents"
    assert ask("/v1/rerank", 400, model="cross", query="red", documents=[])["param"] == "documents"
    unknown = ask("/v1/rerank", 400, model="cross", query="red", documents=["x"], rank_fields=["text"])
    assert (unknown["code"], unknown["param"]) == ("unknown_parameter", "rank_fields")


def test_rerank_cuts_long_documents_but_no_query(ask) -> None:
    long = " ".join(["red cat"] * 200)
    same = ask("/v1/rerank", model="cross", query="dog", documents=[long, long + " river"])["results"]
    assert same[0]["relevance_score"] == pytest.approx(same[1]["relevance_score"], abs=1e-6)
    cut = ask("/v2/rerank", model="cross", query="dog", documents=["red cat river"], max_tokens_per_doc=2)
    alone = ask("/v2/rerank", model="cross", query="dog", documents=["red cat"])
    assert cut["results"][0]["relevance_score"] == pytest.approx(alone["results"][0]["relevance_score"], abs=1e-6)
    refused = ask("/v1/rerank", 400, model="cross", query=" ".join(["red"] * 126), documents=["cat"])
    assert (refused["param"], refused["code"]) == ("query", "context_length_exceeded")


def test_a_yes_no_reranker_gives_the_probability_of_yes(ask, directories) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer

    from tessera_text.encoders.pair_template import QWEN3_RERANKER

    tokenizer = Tokenizer.from_file(str(directories["yes-no"] / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(directories["yes-no"]).eval()
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    answer = ask("/v1/rerank", model="yes-no", query="red cat", documents=TEXTS)
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    for index, text in enumerate(TEXTS):
        written = QWEN3_RERANKER.format(instruction=instruction, query="red cat", document=text)
        ids = tokenizer.encode(written, add_special_tokens=False).ids
        with torch.inference_mode():
            last = model(torch.tensor([ids])).logits[0, -1].double()
        expected = torch.softmax(last[[14, 13]], 0)[1]
        assert scores[index] == pytest.approx(float(expected), abs=1e-4)
    other = ask("/v1/rerank", model="yes-no", query="red cat", documents=TEXTS, instruction="river stone tree")
    assert other["results"] != answer["results"]
    assert (
        ask("/v1/rerank", 400, model="cross", query="red", documents=["x"], instruction="y")["param"] == "instruction"
    )


def test_scores_are_a_rerankers_or_the_cosine_of_embeddings(ask, directories) -> None:
    ranked = ask("/v1/rerank", model="cross", query="red cat", documents=TEXTS)["results"]
    scored = ask("/score", model="cross", text_1="red cat", text_2=TEXTS)
    assert [entry["index"] for entry in scored["data"]] == [0, 1, 2, 3]
    for result in ranked:
        assert scored["data"][result["index"]]["score"] == pytest.approx(result["relevance_score"], abs=1e-6)
    pairs = ask("/v1/score", model="bi", text_1=TEXTS, text_2=TEXTS[::-1])["data"]
    queries = vectors_of(ask("/v1/embeddings", model="bi", input=TEXTS, input_type="query"))
    documents = vectors_of(ask("/v1/embeddings", model="bi", input=TEXTS[::-1], input_type="document"))
    np.testing.assert_allclose([entry["score"] for entry in pairs], (queries * documents).sum(axis=1), atol=1e-5)
    assert "as many against as many" in ask("/score", 400, model="bi", text_1=["a", "b"], text_2=["c"])["message"]


def test_classes_are_the_softmax_of_the_logits(ask, directories) -> None:
    answer = ask("/classify", model="moods", input=TEXTS)
    for entry, text in zip(answer["data"], TEXTS, strict=True):
        outputs = logits(directories["moods"], ids_of(text))
        expected = np.exp(outputs - outputs.max()) / np.exp(outputs - outputs.max()).sum()
        np.testing.assert_allclose(entry["probs"], expected, atol=1e-5)
        assert entry["label"] == ["good", "bad", "ugly"][int(expected.argmax())]
        assert entry["num_classes"] == 3
    assert ask("/v1/classify", model="moods", input="red")["data"][0]["index"] == 0


def test_moderations_map_labels_to_categories(ask, directories) -> None:
    answer = ask("/v1/moderations", input=TEXTS)
    assert answer["model"] == "guard"
    for result, text in zip(answer["results"], TEXTS, strict=True):
        safe, insult, threat, abuse = sigmoid(logits(directories["guard"], ids_of(text)))
        expected = {"harassment": max(insult, abuse), "violence": threat}
        assert result["category_scores"] == pytest.approx(expected, abs=1e-5), safe
        assert result["categories"] == {name: score >= 0.6 for name, score in expected.items()}
        assert result["flagged"] == any(result["categories"].values())
        assert result["category_applied_input_types"] == {"harassment": ["text"], "violence": ["text"]}
    parts = ask(
        "/v1/moderations", model="guard", input=[{"type": "text", "text": "red"}, {"type": "text", "text": "cat"}]
    )
    assert len(parts["results"]) == 1
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    assert "image_url" in ask("/v1/moderations", 400, model="guard", input=image)["message"]


def test_coheres_embed_gives_each_form_that_is_asked_for(ask) -> None:
    forms = ["float", "base64", "binary", "ubinary"]
    answer = ask("/v2/embed", model="bi", texts=TEXTS, input_type="search_query", embedding_types=forms)
    vectors = np.array(answer["embeddings"]["float"])
    np.testing.assert_allclose(
        vectors, vectors_of(ask("/v1/embeddings", model="bi", input=TEXTS, input_type="query")), atol=1e-6
    )
    packed = np.packbits(vectors > 0, axis=1)
    assert answer["embeddings"]["ubinary"] == packed.tolist()
    assert answer["embeddings"]["binary"] == (packed.astype(int) - 128).tolist()
    assert base64.b64decode(answer["embeddings"]["base64"][0]) == vectors[0].astype("<f4").tobytes()
    parts = [{"content": [{"type": "text", "text": "red"}, {"type": "text", "text": "cat"}]}]
    assert list(ask("/v2/embed", model="bi", inputs=parts)["embeddings"]) == ["float"]
    assert "texts" in ask("/v2/embed", 400, model="bi")["message"]
    assert "int8" in ask("/v2/embed", 400, model="bi", texts=["x"], embedding_types=["int8"])["message"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, "for rerank there is: cross, yes-no"),
        ("/classify", {"input": "x"}, "for classify there is: moods, guard"),
        ("/v1/moderations", {"input": "x"}, "for moderations there is: guard"),
        ("/score", {"text_1": "x", "text_2": "y"}, "for score there is: bi, cross, yes-no"),
    ],
)
def test_a_model_that_cannot_do_it_is_refused_with_those_that_can(ask, path, body, words) -> None:
    wrong = "moods" if path in {"/v1/rerank", "/score", "/v1/moderations"} else "bi"
    refused = ask(path, 400, model=wrong, **body)
    assert refused["code"] == "model_not_capable"
    assert words in refused["message"]
    assert words in ask(path, 404, model="absent", **body)["message"]


def test_too_many_texts_and_too_many_tokens_are_refused_before_any_work(ask) -> None:
    assert "at most 50" in ask("/v1/embeddings", 400, model="bi", input=["red"] * 51)["message"]
    assert "at most 50" in ask("/v1/rerank", 400, model="cross", query="x", documents=["red"] * 51)["message"]
    heavy = [" ".join(["red"] * 100)] * 50
    assert "one request may have 4000" in ask("/classify", 400, model="moods", input=heavy)["message"]
    assert ask("/v1/embeddings", 400, model="bi", input=[""])["param"] == "input"
    characters = ask("/v1/embeddings", 400, model="bi", input="x" * 100_000)
    assert "characters" in characters["message"]


def test_many_requests_at_once_get_the_answers_that_they_get_alone(ask) -> None:
    bodies = [("/v1/embeddings", {"model": "bi", "input": TEXTS[: 1 + number % 4]}) for number in range(12)] + [
        ("/v1/rerank", {"model": "cross", "query": TEXTS[number % 4], "documents": TEXTS}) for number in range(12)
    ]
    alone = [ask(path, **body) for path, body in bodies]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda one: ask(one[0], **one[1]), bodies))
    for one, other in zip(alone, together, strict=True):
        if "data" in one:
            np.testing.assert_allclose(vectors_of(one), vectors_of(other), atol=1e-6)
        else:
            assert [result["index"] for result in one["results"]] == [result["index"] for result in other["results"]]


def test_metrics_tell_of_the_encoder_engine(service, ask) -> None:
    ask("/v1/embeddings", model="bi", input=TEXTS)
    text = httpx.get(f"{service.url}/metrics").text
    for name in (
        "tessera_encoder_engine_computed_tokens_total",
        "tessera_encoder_engine_requests_waiting",
        "tessera_encoder_engine_step_forward_seconds_total",
        'tessera_encode_seconds_count{model="bi"}',
        'tessera_encode_tokens_sum{model="bi"}',
    ):
        assert name in text, name


def encoder_pid(service) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == service.process.pid and b"tessera_text.encoder_worker" in command:
                return int(folder.name)
    raise AssertionError("there is no encoder engine")


def test_who_leaves_is_not_encoded(service, ask) -> None:
    def metric(name: str) -> float:
        lines = httpx.get(f"{service.url}/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

    def leave(number: int) -> None:
        paths = {"/v1/embeddings": {"model": "bi", "input": many}, "/v1/moderations": {"input": many}}
        paths["/v1/rerank"] = {"model": "cross", "query": "red", "documents": many}
        path, body = list(paths.items())[number % 3]
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{service.url}{path}", json=body, timeout=httpx.Timeout(60, read=2))

    many = ["red cat green dog house river"] * 50
    ask("/v1/embeddings", model="bi", input=TEXTS)
    before = metric("tessera_encoder_engine_encoded_texts_total")
    engine = encoder_pid(service)
    os.kill(engine, signal.SIGSTOP)  # all are there, and have left, before a step begins
    try:
        with ThreadPoolExecutor(9) as pool:
            list(pool.map(leave, range(9)))
        until(lambda: metric("tessera_http_requests_in_flight") == 1, what="the service to notice that they left")
    finally:
        os.kill(engine, signal.SIGCONT)
    assert len(ask("/v1/embeddings", model="bi", input=TEXTS)["data"]) == 4
    until(lambda: metric("tessera_encoder_engine_encoded_texts_total") >= before + 4, what="the metrics of that step")
    for state in ("waiting", "running"):
        until(lambda state=state: metric(f"tessera_encoder_engine_requests_{state}") == 0, what=f"nobody {state}")
    assert metric("tessera_encoder_engine_encoded_texts_total") < before + 4 + 9 * 50 / 3


def test_a_killed_engine_comes_back_and_the_language_model_does_not_notice(service, ask) -> None:
    pid = encoder_pid(service)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), 10, what="the engine to be gone")
    assert ask("/v1/completions", model="tiny-text", prompt="a", max_tokens=1)["choices"]
    # A request that finds no engine waits for the next process.
    assert len(ask("/v1/embeddings", model="bi", input=TEXTS)["data"]) == 4
    service.wait_ready()
    assert encoder_pid(service) != pid


def test_an_encoder_that_cannot_be_loaded_says_why_and_the_language_model_serves(
    start_service, tiny_text_model, tmp_path
) -> None:
    encoders = json.dumps([{"source": str(tmp_path / "absent")}])
    with start_service("text", wait=False, text__model=str(tiny_text_model), text__encoders=encoders) as running:

        def settled() -> bool:
            try:
                return running.parts() == {"engine": "ok", "encoders": "failed"}
            except OSError:
                return False

        until(settled, 300, what="the encoders to be failed", every_s=0.05)
        answer = httpx.post(f"{running.url}/v1/rerank", json={"model": "absent", "query": "a", "documents": ["b"]})
        assert answer.status_code == 503
        assert "there is no model directory" in answer.json()["error"]["message"]
        chat = httpx.post(f"{running.url}/v1/completions", json={"model": "tiny-text", "prompt": "a", "max_tokens": 1})
        assert chat.status_code == 200


def test_an_encoder_as_language_model_is_refused_with_the_place_where_it_belongs(start_service, directories) -> None:
    with start_service("text", wait=False, text__model=str(directories["bi"])) as running:

        def failed() -> bool:
            try:
                return running.parts() == {"engine": "failed"}
            except OSError:
                return False

        until(failed, 300, what="the engine to be failed", every_s=0.05)
        answer = httpx.post(f"{running.url}/v1/completions", json={"model": "bi", "prompt": "a"})
        assert "[[text.encoders]]" in answer.json()["error"]["message"]


def test_without_encoders_each_route_says_what_to_configure(text) -> None:
    for path, body in (
        ("/v1/rerank", {"model": "x", "query": "a", "documents": ["b"]}),
        ("/score", {"model": "x", "text_1": "a", "text_2": "b"}),
        ("/classify", {"model": "x", "input": "a"}),
        ("/v1/moderations", {"input": "a"}),
    ):
        answer = httpx.post(f"{text.url}{path}", json=body)
        assert answer.status_code == 404
        assert "[[text.encoders]]" in answer.json()["error"]["message"]
