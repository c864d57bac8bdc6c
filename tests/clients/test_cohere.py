"""Cohere's client: reranking in both versions, embeddings, errors."""

from __future__ import annotations

import cohere
import pytest

DOCUMENTS = ["red cat", "green dog house", "river", "stone tree blue cat dog"]


def test_documents_are_ranked(gateway):
    client = cohere.ClientV2(api_key=gateway.key, base_url=gateway.url)
    ranked = client.rerank(model=gateway.reranker, query="blue cat", documents=DOCUMENTS, top_n=3)
    scores = [result.relevance_score for result in ranked.results]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    older = cohere.Client(api_key=gateway.key, base_url=gateway.url)
    texts = [{"text": text} for text in DOCUMENTS]
    same = older.rerank(model=gateway.reranker, query="blue cat", documents=texts, return_documents=True, top_n=3)
    assert [result.index for result in same.results] == [result.index for result in ranked.results]
    assert same.results[0].document.text == DOCUMENTS[same.results[0].index]


def test_texts_are_embedded(gateway):
    client = cohere.ClientV2(api_key=gateway.key, base_url=gateway.url)
    found = client.embed(
        model=gateway.embedder, input_type="search_query", texts=DOCUMENTS, embedding_types=["float", "ubinary"]
    )
    assert len(found.embeddings.float_) == len(found.embeddings.ubinary) == len(DOCUMENTS)


def test_a_missing_model_is_the_clients_own_error(gateway):
    client = cohere.ClientV2(api_key=gateway.key, base_url=gateway.url)
    with pytest.raises(cohere.errors.NotFoundError):
        client.rerank(model="absent", query="cat", documents=DOCUMENTS)
