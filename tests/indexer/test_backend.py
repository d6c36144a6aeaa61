"""EmbeddedBackend passes the contract however its candidates are found, and shares threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from backend_contract import CM, BackendContract, X, calibrated, document, generated, ids, said
from embedded_toys import collection_of, index_words, leave, put
from enriched_contract import CALIBRATED, CAT, EnrichedContract, tagged

from capsearch.engine.evidence import ConvexCombination, NamedConcepts, SingleSource
from capsearch.engine.fakes import FakeBackend
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.indexer.sqlite import matches, nearest, search
from capsearch.indexer.sqlite.writer import CatalogWriter


class TestEmbedded(BackendContract, EnrichedContract):
    spacing = 1

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.path, self.opened = tmp_path, []
        yield
        for collection in self.opened:
            collection.close()

    def build(self, documents, vectors, captions):
        where = self.path / str(len(self.opened))
        self.opened.append(collection_of(where, documents, vectors, captions, self.spacing))
        return self.opened[-1].backend


class TestWithUnusedRows(TestEmbedded):
    spacing = 2


class TestStepByStep(TestEmbedded):
    """Few candidates at a time, so that every page takes many steps; filters on top of that."""

    spacing = 2

    @pytest.fixture(autouse=True)
    def _shallow(self, monkeypatch):
        monkeypatch.setattr(search, "MIN_DEPTH", 4)
        monkeypatch.setattr(search, "_FIRST_PART", 1)
        monkeypatch.setattr(search, "_SCORED", 0)
        monkeypatch.setattr(search, "_FEW_SHARE", 1)


class TestWithCachedImagesOfCaptions(TestStepByStep):
    """Which image a caption belongs to is not looked up."""

    def build(self, documents, vectors, captions):
        backend = super().build(documents, vectors, captions)
        with pytest.MonkeyPatch.context() as large:
            large.setattr(nearest, "EXACT_ROWS", dict.fromkeys(nearest.EXACT_ROWS, 0))
            matches.refresh(backend.catalog)
        assert backend.catalog.array("captions").images_path.exists() == bool(captions)
        return backend


class TestManyPassTheFilters(TestStepByStep):
    """Filters are checked on candidates, and looked up only if few of these pass."""

    @pytest.fixture(autouse=True, params=[8, 1000])
    def _many(self, monkeypatch, request):
        monkeypatch.setattr(search, "_FEW", 0)
        monkeypatch.setattr(search, "_DEEP", request.param)


class TestByCodes(TestEmbedded):
    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch):
        monkeypatch.setattr(nearest, "EXACT_ROWS", dict.fromkeys(nearest.EXACT_ROWS, 0))


FUSIONS = (
    SingleSource("image"),
    SingleSource("caption"),
    *(ConvexCombination(weight, 0.25) for weight in (0.0, 0.4, 1.0)),
    calibrated(),
)


# What has one sense lowers the bound of candidates, what has two does not.
NAMED = NamedConcepts(
    np.array([[1, 2, 0], [-3, 0, 1], [0, 0, 2]], np.float32), np.ones(3, np.float32), (1, 2), 0, 0.3
)


@pytest.fixture
def written():
    """90 documents, two of three with captions, few distinct scores, some words."""
    rng = np.random.default_rng(3)
    names = [f"i{n * 7 % 90:02}" for n in range(90)]
    vectors = {one: rng.integers(-2, 3, 3).astype(np.float32) / 2 for one in names}
    captions = [
        (
            names[rng.integers(60)],
            (said if n % 3 else generated)(f"text{n} word{n % 7}"),
            rng.integers(-2, 3, 3).astype(np.float32) / 2,
        )
        for n in range(120)
    ]
    of = {one: [text for owner, text, _ in captions if owner == one] for one in names}
    documents = [
        document(one, *sorted(of[one], key=lambda text: text.generated), tags=["odd"] * (n % 2))
        for n, one in enumerate(names)
    ]
    return documents, vectors, captions


@pytest.mark.parametrize(
    ("filters", "few"),
    [(Filters(), 0), (Filters(tags=("odd",)), 100), (Filters(tags=("odd",)), 0)],
    ids=["all", "looked up", "checked"],
)
@pytest.mark.parametrize("named", [None, NAMED], ids=["", "named"])
@pytest.mark.parametrize("fusion", FUSIONS, ids=repr)
def test_candidates_step_by_step_give_what_scoring_everything_gives(
    tmp_path, monkeypatch, written, fusion, named, filters, few
):
    monkeypatch.setattr(search, "MIN_DEPTH", 4)
    monkeypatch.setattr(search, "_SCORED", 0)
    monkeypatch.setattr(search, "_FEW", few)
    monkeypatch.setattr(search, "_FEW_SHARE", 1)
    documents, vectors, captions = written
    everything = FakeBackend({one.record.id: one for one in documents}, vectors, captions)
    caption = None if fusion == SingleSource("image") else np.array([0, 1, 1], np.float32)
    image = None if fusion == SingleSource("caption") else X
    words = ("word3", "text11", "nowhere")
    query = EncodedQuery(fusion, image, caption, words, named=None if image is None else named)
    with collection_of(tmp_path / "index", documents, vectors, captions, spacing=2) as opened:
        for limit, offset in [(1, 0), (5, 0), (5, 5), (30, 20), (100, 0)]:
            expected = everything.search(query, filters, limit, offset)
            found = opened.backend.search(query, filters, limit, offset)
            assert [(one.document.record.id, one.score) for one in found] == [
                (one.document.record.id, pytest.approx(one.score)) for one in expected
            ]
            assert [one.contributions.caption for one in found] == [
                one.contributions.caption for one in expected
            ]


@pytest.mark.parametrize("filters", [Filters(), Filters(tags=("animal",))], ids=["all", "checked"])
def test_without_vectors_all_that_have_the_tag_are_found_page_by_page(
    tmp_path, monkeypatch, filters
):
    monkeypatch.setattr(search, "MIN_DEPTH", 4)
    monkeypatch.setattr(search, "_SCORED", 0)
    monkeypatch.setattr(search, "_FEW", 0)
    names = [f"i{n:02}" for n in range(50)]
    documents = [tagged(one, cat=1 - n / 100) for n, one in enumerate(names)]
    query = EncodedQuery(CALIBRATED, np.zeros(3, np.float32), words=("cat",), concepts=(CAT,))
    with collection_of(tmp_path / "index", documents, dict.fromkeys(names, X), ()) as opened:
        pages = [opened.backend.search(query, filters, 20, offset) for offset in (0, 20, 40)]
    assert [one for page in pages for one in ids(page)] == names


def test_few_captions_among_many_images_are_searched_without_reading_all_images(
    tmp_path, monkeypatch
):
    names = [f"i{n:03}" for n in range(200)]
    captions = [("i007", said("cat"), X)]
    monkeypatch.setattr(search, "MIN_DEPTH", 8)
    rows, asked = search.Revision.rows, []
    monkeypatch.setattr(
        search.Revision, "rows", lambda self, slots: asked.append(len(slots)) or rows(self, slots)
    )
    with collection_of(
        tmp_path / "index", [document(one) for one in names], dict.fromkeys(names, X), captions
    ) as opened:
        found = opened.backend.search(
            EncodedQuery(SingleSource("caption"), caption=X), Filters(), 10
        )
    assert ids(found) == ["i007"] and max(asked) == 1


def test_a_document_that_codes_find_late_does_not_disturb_the_pages(tmp_path, monkeypatch):
    names = [f"i{n:02}" for n in range(64)]
    vectors = {one: np.array([1 - n / 64, 0, 0], np.float32) for n, one in enumerate(names)}

    class Forgetful(nearest.Nearest):
        """Finds the second best row in the second step."""

        def __init__(self, rows):
            self.exact = nearest.ExactSearch(rows)

        def steps(self, query, depths):
            first, *others = self.exact.steps(query, depths)
            return [first[first != 1], *(np.append(one, [1]) for one in others)]

    monkeypatch.setattr(search, "MIN_DEPTH", 32)  # the first step has a quarter of it
    monkeypatch.setattr(nearest, "build", lambda rows, codes: Forgetful(rows))
    with collection_of(tmp_path / "index", [document(one) for one in names], vectors, ()) as opened:
        pages = [
            opened.backend.search(EncodedQuery(CM, X), Filters(), 2, at) for at in range(0, 64, 2)
        ]
    found = [one for page in pages for one in ids(page)]
    assert len(found) == 64 and sorted(found) == names
    assert found[:4] == ["i00", "i02", "i01", "i03"]


def test_threads_share_a_backend_while_another_writes(tmp_path):
    names = [f"i{n:02}" for n in range(30)]
    answers: list[list[str]] = []
    with collection_of(
        tmp_path / "index", [document(one) for one in names], dict.fromkeys(names, X), ()
    ) as opened:

        def search() -> None:
            query = EncodedQuery(CM, X)
            answers.extend(ids(opened.backend.search(query, Filters(), 5)) for _ in range(20))

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        writer = CatalogWriter(opened.catalog)
        for n in range(20):
            with writer.transaction():
                writer.set_meta("note", str(n))
        for thread in threads:
            thread.join()
    assert answers == [names[:5]] * 80


def test_the_stored_count_of_documents_serves_until_something_changes(tmp_path):
    with collection_of(
        tmp_path / "index", [document("a"), document("b")], {"a": X, "b": X}, ()
    ) as opened:
        opened.finish()
        assert opened.catalog.meta("searchable") == f"{opened.catalog.revision()} 2"
        leave(opened, "/p/a.jpg")
        assert len(opened.backend) == opened.catalog.searchable_count() == 1


def test_facets_are_counted_again_after_a_change(tmp_path, monkeypatch):
    monkeypatch.setattr("capsearch.indexer.sqlite.backend.MIN_INTERVAL_S", 0.0)
    with collection_of(tmp_path / "index", [document("a", tags=["cat"])], {"a": X}, ()) as opened:
        before = opened.backend.facets()
        assert opened.backend.facets() is before
        put(opened, document("b", tags=["dog"]))
        index_words(opened)
        assert [one.value for one in opened.backend.facets().tags] == ["cat", "dog"]
