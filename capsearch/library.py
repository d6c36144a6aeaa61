"""The front door: a library of images, in an index folder or in an Elasticsearch cluster.

The command line, the search page and scripts index, search, enrich, export and review through a
Library and nothing behind it. Importing this module imports neither models nor stores: each call
imports what it needs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias, Union

from capsearch.engine.errors import CapsearchError, IndexProblem, InvalidImage, ModelMismatch
from capsearch.engine.query import Query
from capsearch.engine.records import (
    LANGUAGES,
    Caption,
    Document,
    Facets,
    Filters,
    ImageRecord,
    Pixels,
    Progress,
    SearchResult,
)

if TYPE_CHECKING:
    from capsearch.encoders.models.describe import Description, Sentence
    from capsearch.encoders.models.registry import Model
    from capsearch.engine.protocols import Head
    from capsearch.indexer.elastic.collection import ElasticCollection, ElasticStats
    from capsearch.indexer.elastic.copy import CopySummary
    from capsearch.indexer.enrichment import EnrichSummary
    from capsearch.indexer.exporting import Exported, XmpNames
    from capsearch.indexer.pipeline import IndexOptions, IndexSummary
    from capsearch.indexer.roots import Forgettable, Sources
    from capsearch.indexer.sqlite.collection import Collection, CollectionStats

AnyPath: TypeAlias = Union[str, "os.PathLike[str]"]
Place: TypeAlias = Path | str  # the folder of an index, or the URL of a collection in a cluster
AnyCollection: TypeAlias = Union["Collection", "ElasticCollection"]
Show: TypeAlias = Callable[[Progress], None]
ExportKind: TypeAlias = Literal["coco", "csv", "text", "xmp"]


def open(
    index: AnyPath | None = None,
    *,
    model: str | None = None,
    shards: int = 1,
    replicas: int = 1,
) -> Library:
    """The library at `index`: a folder, or https://HOST:9200/NAME in an Elasticsearch cluster.

    Without one, the folder $CAPSEARCH_INDEX or `default` in the user's data directory. `model` is
    a name or a path (./DIR); by default the one that the index was made with. Nothing is read
    before the first call that needs it: an index that is not there is made by `Library.index`.
    """
    return Library(_place(index), model, shards, replicas)


def default_index() -> Path:
    """$CAPSEARCH_INDEX, or `default` in the user's data directory."""
    from capsearch.indexer.sqlite.collection import default_index_path

    return default_index_path()


def _place(index: AnyPath | None) -> Place:
    if index is None:
        return default_index()
    if not isinstance(index, str) or "://" not in index:
        return Path(index).expanduser()
    from capsearch.indexer.elastic.client import Address

    return str(Address.parse(index))


class Library(AbstractContextManager["Library"]):
    """Images that can be searched, and what is written about them. Threads may share one.

    It is read as it was when a call began, whatever is being written. Calls that write lock the
    index while they run: IndexBusy while another process does. Errors are CapsearchError.
    """

    def __init__(
        self, place: Place, model: str | None = None, shards: int = 1, replicas: int = 1
    ) -> None:
        self.place = place
        self._model_name = model
        self._sizes = (shards, replicas)  # of a new collection in a cluster
        self._named: Model | None = None  # the model of that name, once it is loaded
        self._reader: AnyCollection | None = None
        self._inode = 0
        self._opening = threading.Lock()

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases files and connections; a later call opens them again."""
        with self._opening:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def refresh(self) -> None:
        """Opens the index now, or again where another process has replaced it since.

        That is, where it was deleted and made anew, or rebuilt with another model. IndexMissing
        where there is none, ModelMismatch when it was made with another model than the one named.
        """
        self._let_go_if_replaced()
        self._collection()

    # Searching

    def search(
        self,
        text: str | Query | None = None,
        image: AnyPath | bytes | None = None,
        *,
        limit: int | None = None,
        filters: Filters | None = None,
    ) -> SearchResult:
        """The images that suit a sentence, an image (a file, or its bytes), or both.

        A Query in place of the text says the rest: language, mode, weights, cut-off, the next
        page. Raises IndexMissing, IndexEmpty, InvalidQuery, InvalidImage, UnknownLanguage.
        """
        query = text if isinstance(text, Query) else Query(text or "")
        if limit is not None:
            query = replace(query, limit=limit)
        if filters is not None:
            query = replace(query, filters=filters)
        if image is not None:
            query = replace(query, image=self.decode(image))
        query.check()
        from capsearch.encoders.text.concepts import label_of

        result = self._collection().engine().search(query)
        hits = tuple(replace(hit, label_of=label_of) for hit in result.hits)
        return replace(result, hits=hits)

    def decode(self, image: AnyPath | bytes, max_pixels: int | None = None) -> Pixels:
        """An image as `Query.image` has it; InvalidImage for what is none, or has more pixels."""
        return _decoded(image, self.model, max_pixels)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """Images by the date they were taken, latest first; IndexEmpty where there are none."""
        return self._collection().engine().backend.newest(filters, limit, offset)

    def near_duplicates(self, image_id: str, limit: int = 12) -> tuple[tuple[Document, float], ...]:
        """Other images so alike that they are probably the same, with their cosines."""
        from capsearch.engine.vectors import near_duplicates

        backend = self._collection().backend
        return tuple(
            (hit.document, hit.score) for hit in near_duplicates(backend, image_id, limit=limit)
        )

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Images by id with all that is written about them; unknown ids are left out."""
        return self._collection().backend.lookup(ids)

    def facets(self) -> Facets:
        """What the images can be filtered by, with counts."""
        return self._collection().backend.facets()

    def captioned(self) -> bool:
        """Whether any caption can be searched."""
        return self._collection().backend.stats().captioned

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far."""
        return self._collection().roots()

    def __len__(self) -> int:
        """How many images can be searched."""
        return len(self._collection().backend)

    def __bool__(self) -> bool:
        """True: a library without images is one all the same."""
        return True

    def thumbnail(self, record: ImageRecord, edge: int = 320) -> Path:
        """A JPEG of an image, at most `edge` pixels wide and high; InvalidImage if none can be."""
        from capsearch.indexer.thumbnails import thumbnail

        return thumbnail(self._collection().path, record, edge)

    # Writing

    def index(
        self,
        paths: AnyPath | Sequence[AnyPath] = (),
        *,
        options: IndexOptions | None = None,
        enrich: bool = True,
        progress: Show | None = None,
        stop: threading.Event | None = None,
    ) -> IndexSummary:
        """Brings the index up to date with folders of images, or with those indexed before.

        Once all images can be searched, the model writes captions and tags, if it does, unless
        `enrich` is False. `stop` ends the run after the current batch; the next one goes on.
        """
        from capsearch.indexer.pipeline import IndexOptions, index

        roots = _paths(paths)
        if not roots and isinstance(self.place, Path) and not self.place.exists():
            raise IndexProblem(
                "nothing to index: name a folder, as in `capsearch index ~/Pictures`"
            )
        options, stop = options or IndexOptions(), stop or threading.Event()
        show = progress or _ignore
        with self._writing(options.rebuild) as collection:
            summary = index(collection, roots, options, progress=show, stop=stop)
            if not enrich or stop.is_set() or not collection.model.enricher():
                return summary
            from capsearch.indexer import enrichment

            settings = enrichment.EnrichOptions(
                batch_size=options.batch_size,
                decode_threads=options.decode_threads,
                max_pixels=options.max_pixels,
                decode_pixels=options.decode_pixels,
            )
            written = enrichment.enrich(collection, settings, progress=show, stop=stop)
            return replace(summary, enriched=written)

    def enrich(
        self,
        paths: AnyPath | Sequence[AnyPath] = (),
        *,
        redo: bool = False,
        batch_size: int = 32,
        decode_threads: int | None = None,
        progress: Show | None = None,
        stop: threading.Event | None = None,
    ) -> EnrichSummary:
        """Lets the model write captions and tags for images that it has not described yet.

        Only for images in `paths` and below, if any are given; with `redo` for all of them.
        """
        from capsearch.indexer.enrichment import EnrichOptions, enrich

        self.refresh()  # an index that is not there is not made
        options = EnrichOptions(_paths(paths), redo, batch_size, decode_threads)
        with self._writing() as collection:
            return enrich(collection, options, progress=progress or _ignore, stop=stop)

    def accept(self, image_id: str, caption: Caption) -> None:
        """A generated caption is right: from now on it is a person's.

        As in `correct` and `reject`: InvalidCaptions if the image has no such caption any more;
        searches that start afterwards find the change.
        """
        from capsearch.indexer.enrichment import accept

        with self._writing() as collection:
            accept(collection, image_id, caption)

    def correct(self, image_id: str, caption: Caption, text: str) -> None:
        """A person's text replaces a generated caption; InvalidCaptions for one that is none."""
        from capsearch.indexer.enrichment import correct

        with self._writing() as collection:
            correct(collection, image_id, caption, text)

    def reject(self, image_id: str, caption: Caption) -> None:
        """A generated caption is wrong: it goes, and does not come back."""
        from capsearch.indexer.enrichment import reject

        with self._writing() as collection:
            reject(collection, image_id, caption)

    def forget(
        self, path: AnyPath, confirm: Callable[[Forgettable], bool] = lambda known: True
    ) -> Forgettable | None:
        """Lets go of an indexed folder or captions file, with what only they brought.

        `confirm` is asked first, with what would go; None if it declines. No image is touched.
        """
        from capsearch.indexer.roots import forget

        with self._sources() as sources:
            return forget(sources, Path(path), confirm)

    # Out of it

    def export(
        self,
        kind: ExportKind,
        output: AnyPath | TextIO | None = None,
        *,
        paths: AnyPath | Sequence[AnyPath] = (),
        written_by: Literal["people", "models"] | None = None,
        languages: Sequence[str] = LANGUAGES,
        xmp_names: XmpNames = "lightroom",
    ) -> Exported:
        """Writes captions and tags for other programs; of images in `paths`, if any are given.

        "coco" and "csv" go to a new file or an open one, "text" to a folder, "xmp" to sidecars
        beside the images. What models wrote is marked so; no file of another program is changed.
        """
        from capsearch.indexer import exporting

        selection = exporting.Selection(_paths(paths), written_by, tuple(languages))
        collection = self._collection()
        if kind == "xmp":
            return exporting.xmp_files(collection, selection, xmp_names)
        if output is None:
            raise ValueError(f"{kind} needs an output")
        if kind == "text":
            if not isinstance(output, str | os.PathLike):
                raise ValueError("text files need a folder")
            return exporting.text_files(collection, selection, Path(output).expanduser())
        write = {"coco": exporting.coco, "csv": exporting.table}[kind]
        if isinstance(output, str | os.PathLike):
            return _write_new(Path(output).expanduser(), lambda: write(collection, selection))
        output.write(write(collection, selection))
        return exporting.Exported(1, ())

    def copy(
        self,
        target: Library,
        *,
        rebuild: bool = False,
        load_replicas: int | None = None,
        progress: Show | None = None,
        stop: threading.Event | None = None,
    ) -> CopySummary:
        """Copies an index folder to a cluster, or back, without encoding anything again.

        `rebuild` replaces a collection in a cluster that was made with another model;
        `load_replicas` are those of a new one while it is filled.
        """
        from capsearch.indexer.elastic.client import Address
        from capsearch.indexer.elastic.copy import from_cluster, to_cluster
        from capsearch.indexer.sqlite.collection import Collection

        def show(done: int, total: int) -> None:
            (progress or _ignore)(Progress("copy", done, total))

        stop = stop or threading.Event()
        if isinstance(self.place, Path) and isinstance(target.place, str):
            shards, replicas = target._sizes
            with Collection.open(self.place) as collection:
                return to_cluster(
                    collection, Address.parse(target.place), show, stop, rebuild=rebuild,
                    shards=shards, replicas=replicas, load_replicas=load_replicas,
                )  # fmt: skip
        if isinstance(self.place, Path) or isinstance(target.place, str):
            raise ValueError("one side is a folder, the other a collection in a cluster")
        with Collection.create(target.place, self.model) as collection:
            collection.require_same_model()
            return from_cluster(Address.parse(self.place), collection, show, stop)

    def stats(self) -> CollectionStats | ElasticStats:
        """What the index holds, which model made it, and its size; the model may be missing."""
        from capsearch.indexer.elastic import collection as elastic
        from capsearch.indexer.sqlite import collection as sqlite

        if isinstance(self.place, str):
            return elastic.read_stats(self.place)
        return sqlite.read_stats(self.place)

    def model_problem(self) -> str | None:
        """Why the index cannot be searched with its model, and what to do; None if it can."""
        from capsearch.encoders.models import registry

        stats = self.stats()
        made = stats.model_path or stats.model
        try:
            digest = registry.load(made).digest
        except CapsearchError as error:
            return (
                f"the model of this index, {made}@{stats.model_digest}, is missing: {error}. Put "
                "it back to search, or run `capsearch index --rebuild --model NAME` with another"
            )
        if digest == stats.model_digest:
            return None
        return (
            f"this index was built with {made}@{stats.model_digest}, but {made} is now @{digest}; "
            "run `capsearch index --rebuild`"
        )

    @property
    def model(self) -> Model:
        """The model named when this was opened, or that of the index."""
        return self._named_model() or self._collection().model

    @property
    def calibrated(self) -> bool:
        """Whether scores are probabilities."""
        from capsearch.encoders.models.text import is_calibrated

        return is_calibrated(self.model)

    # Opening

    def _named_model(self) -> Model | None:
        from capsearch.encoders.models import registry

        if self._named is None and self._model_name is not None:
            self._named = registry.load(self._model_name)
        return self._named

    def _collection(self) -> AnyCollection:
        """The index, open for reading."""
        with self._opening:
            if self._reader is None:
                self._inode = self._catalog_inode()
                self._reader = self._open()
            return self._reader

    def _open(self) -> AnyCollection:
        if isinstance(self.place, str):
            from capsearch.indexer.elastic.collection import ElasticCollection

            return ElasticCollection.open(self.place, self._named_model())
        from capsearch.indexer.sqlite.collection import Collection

        return Collection.open(self.place, self._named_model())

    @contextmanager
    def _writing(self, rebuild: bool = False) -> Iterator[AnyCollection]:
        """The index, open for writing; made if there is none, of any schema to `rebuild` it."""
        self._let_go_if_replaced()
        with self._create(rebuild) as collection:
            yield collection
        self._let_go_if_replaced()

    def _create(self, rebuild: bool) -> AnyCollection:
        model = self._named_model()
        if model is None and self._reader is not None:
            model = self._reader.model
        if isinstance(self.place, str):
            from capsearch.indexer.elastic.collection import ElasticCollection

            return ElasticCollection.create(self.place, model, *self._sizes)
        from capsearch.indexer.sqlite.collection import Collection

        return Collection.create(self.place, model, rebuild)

    @contextmanager
    def _sources(self) -> Iterator[Sources]:
        if isinstance(self.place, str):
            from capsearch.indexer.elastic.collection import ElasticCollection

            with ElasticCollection.open(self.place) as collection:
                yield collection.sources()
        else:
            from capsearch.indexer.sqlite.sources import opened_sources

            with opened_sources(self.place) as sources:
                yield sources

    def _let_go_if_replaced(self) -> None:
        """Of an index that was deleted and made anew, or rebuilt with another model."""
        with self._opening:
            if self._reader is not None and self._is_replaced(self._reader):
                self._reader = None  # not closed: other threads may still read it

    def _is_replaced(self, reader: AnyCollection) -> bool:
        if self._inode != self._catalog_inode():
            return True
        try:
            reader.require_same_model()
        except ModelMismatch:
            return True
        return False

    def _catalog_inode(self) -> int:
        """Changes when an index folder is deleted and made anew; 0 where there is none."""
        from capsearch.indexer.sqlite.collection import CATALOG

        if isinstance(self.place, str):
            return 0
        try:
            return (self.place / CATALOG).stat().st_ino
        except OSError:
            return 0


def devices() -> Mapping[str, str]:
    """What this machine would use for a new image, and for a search in a large index here."""
    from capsearch.encoders.models.image import device
    from capsearch.indexer.sqlite.nearest import gpus

    return {"encoding": device(), "search": f"{gpus()} GPU" if gpus() else "cpu"}


def describe(image: AnyPath, *, model: str | None = None) -> Description:
    """What a model writes about an image file, without an index.

    InvalidImage for what is none, UnknownModel for a model that writes neither captions nor tags.
    """
    [description] = describe_files([image], model=model)
    if description.problem:
        raise InvalidImage(f"{image}: {description.problem}")
    return description


def describe_files(
    images: Sequence[AnyPath], *, model: str | None = None, head: Head | None = None
) -> Iterator[Description]:
    """The same for many files, in their order; one that cannot be opened has a `problem`.

    UnknownModel where the model has neither tagger nor captioner, or not the `head` asked for.
    """
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.describe import describe_files, require_head

    loaded = registry.load(model)
    require_head(loaded, head)
    return describe_files(loaded, _paths(images))


def best_sentences(
    image: AnyPath,
    sentences: Sequence[str],
    *,
    language: str | None = None,
    limit: int = 10,
    model: str | None = None,
) -> tuple[Sentence, ...]:
    """The sentences that suit an image file best, best first: search the other way."""
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.describe import best_sentences

    loaded = registry.load(model)
    return best_sentences(loaded, _decoded(image, loaded), sentences, limit, language)


def _decoded(image: AnyPath | bytes, model: Model, max_pixels: int | None = None) -> Pixels:
    from capsearch.encoders.images.open import MAX_PIXELS
    from capsearch.encoders.images.preprocess import decode

    source = image if isinstance(image, bytes) else Path(image).expanduser()
    try:
        return decode(source, model.image.preprocess, max_pixels or MAX_PIXELS).pixels
    except InvalidImage as problem:
        if isinstance(source, bytes):
            raise
        raise InvalidImage(f"{source}: {problem}") from problem


def _paths(given: AnyPath | Sequence[AnyPath]) -> tuple[Path, ...]:
    several = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(Path(path).expanduser() for path in several)


def _write_new(output: Path, content: Callable[[], str]) -> Exported:
    from capsearch.encoders import atomic
    from capsearch.indexer.exporting import Exported

    if output.exists():
        raise IndexProblem(f"{output} exists and is not overwritten; choose another name")
    atomic.write_text(output, content())
    return Exported(1, ())


def _ignore(progress: Progress) -> None:
    pass
