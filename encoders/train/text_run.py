"""Training runs on a fixed backbone's features: text encoders, or only an image projection.

Text encoders by name: ours, and those of the papers' tables. With a teacher, they learn the space
of a CLIP-like model: its image tower is the backbone, without a projection, and where it reads a
language, its text vectors of captions and of sentences without images are targets too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from capsearch.encoders.data.features import CachedSentenceEncoder, EncodesSentences, FeatureCache
from capsearch.encoders.data.labels import held_out
from capsearch.encoders.data.layouts import open_text
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.clip import ClipTextEncoder
from capsearch.encoders.models.hubness import QueryBank
from capsearch.encoders.models.image import ImageNetwork
from capsearch.encoders.settings import DEFAULT_BACKBONE, ProjectionRun, TextRun, TrainingRun
from capsearch.encoders.text import concepts
from capsearch.encoders.text.languages import detect, simplify
from capsearch.encoders.train import w2vv
from capsearch.encoders.train.captions import (
    Captions,
    Corpus,
    CorpusBuilder,
    captions_of,
    shown_concepts,
)
from capsearch.encoders.train.dual_encoder import (
    DualEncoder,
    TrainingOptions,
    TrainingSet,
    freeze_text,
)
from capsearch.encoders.train.export import (
    export_projection,
    export_text,
    finish_card,
    load_projection,
    load_text,
    text_source,
)
from capsearch.encoders.train.loop import interpolate_weights
from capsearch.encoders.train.prune import build_query_bank, calibrate
from capsearch.encoders.train.run import (
    Listener,
    SplitFeatures,
    card_of,
    checkpoint_of,
    existing_corpus,
    fit,
    requirements_of,
    sentence_encoder,
    serve_like,
    train_and_validation,
    training_options,
)
from capsearch.encoders.train.trainer import Trainer, evaluate, name_anchors
from capsearch.engine.errors import TrainingProblem

# COCO-CN, table X: three inputs, frozen word2vec vectors, predicting the image feature itself.
_PAPER = w2vv.TextConfig(inputs=("bow", "word2vec", "gru"), gru_width=1024, train_words=False)


_PREDICTING = {"loss": "mse", "space": "feature", "caption_loss_weight": 0.0}
_LEARNED_WORDS = replace(_PAPER, train_words=True)
# What a variant changes in the options.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "shared": {},
    "w2vv": {**_PREDICTING, "config": replace(_LEARNED_WORDS, pooling="last")},
    "w2vv-attention": {**_PREDICTING, "config": _PAPER},
    "enhanced-w2vv": {**_PREDICTING, "config": _PAPER, "loss": "contrastive"},
    "w2vv++": {
        "config": replace(_LEARNED_WORDS, pooling="mean"),
        "loss": "triplet",
        "caption_loss_weight": 0.0,
    },
}


def apply_variant(name: str, options: TrainingOptions, features: int) -> TrainingOptions:
    """The options of a named variant for a backbone with `features` features."""
    if name not in VARIANTS:
        raise TrainingProblem(f"no variant called '{name}'; there is {', '.join(VARIANTS)}")
    options = replace(options, **VARIANTS[name])
    return replace(options, dimension=features) if options.space == "feature" else options


def train_text(run: TextRun, listener: Listener) -> Path:
    """Text encoders and image projection on a backbone's features; the new model's folder.

    Those of `run.from_` are fine-tuned, on the features of its own backbone; or new ones trained.
    """
    started = _fine_tuned(run, listener) if run.from_ else _new(run, listener)
    run, options, model = started.run, started.options, started.model
    backbone, corpus = started.backbone, started.corpus
    validation = TrainingSet(started.validation.views, corpus.validation)
    train = TrainingSet(
        started.train.views, corpus.train, shown=corpus.shown, anchors=started.anchors
    )
    best = fit(run, Trainer(model, train, validation, options, checkpoint_of(run)), listener)
    if started.initial:
        best = interpolate_weights(
            model, started.initial, best, lambda: evaluate(model, validation)
        )
        listener.epoch(best)
    bank = build_query_bank(model, train.captions, options.seed)
    card = {
        **started.card,
        **card_of(run, options, train, best),
        "description": f"text encoders for {', '.join(run.languages)} on {backbone.name}",
        **requirements_of(run, options.dimension, started.backbone_name, backbone.digest),
        **asdict(calibrate(model, bank, validation)),
    }
    export_text(model, corpus.vocabularies, bank, run.folder, card)
    serve_like(run, run.folder, listener)
    checkpoint_of(run).unlink(missing_ok=True)
    return run.folder


@dataclass(frozen=True, slots=True)
class _Started:
    """A model before training, and what it is trained on."""

    run: TextRun
    options: TrainingOptions
    model: DualEncoder
    backbone_name: str
    backbone: ImageNetwork
    corpus: Corpus
    train: SplitFeatures
    validation: SplitFeatures
    anchors: Mapping[str, Captions] | None = None
    initial: Mapping[str, Tensor] = field(default_factory=dict)  # weights; none if they are random
    card: Mapping[str, Any] = field(default_factory=dict)  # where these are from


def _new(run: TextRun, listener: Listener) -> _Started:
    """New text encoders, with vocabularies of the training captions."""
    config = w2vv.text_config(run.inputs, run.pooling, run.hidden)
    options = training_options(run, config=config)
    teacher = find_teacher(run)
    name = run.teacher or run.backbone or DEFAULT_BACKBONE
    backbone = registry.load_backbone(name)
    options = apply_variant(run.variant, options, backbone.dimension)
    if teacher:
        options = replace(options, space="teacher", dimension=backbone.dimension)
    without_image = read_sentences(run.sentences, teacher.reads) if teacher else {}
    train, validation = train_and_validation(run, backbone, listener, run.flip)
    builder = corpus_builder(run, options, listener)
    corpus = builder.build(train.data, validation.data, run.languages, without_image)
    if teacher:
        corpus = teach(run, teacher, corpus, listener)
    model = DualEncoder(corpus.vocabularies, corpus.vectors, backbone.dimension, options)
    return _Started(run, options, model, name, backbone, corpus, train, validation)


def corpus_builder(run: TrainingRun, options: TrainingOptions, listener: Listener) -> CorpusBuilder:
    """What makes the captions of a run a corpus with new vocabularies and word vectors."""
    return CorpusBuilder(
        sentence_encoder(run, listener),
        FeatureCache(run.features),
        options.config.word_width,
        run.min_count,
        options.seed,
    )


def _fine_tuned(run: TextRun, listener: Listener) -> _Started:
    """The text encoders, projection, languages and vocabularies of `run.from_`."""
    assert run.from_ is not None
    if run.backbone or run.teacher:
        other = "--backbone" if run.backbone else "--teacher"
        raise TrainingProblem(f"{run.from_} is fine-tuned in its own space; leave {other} out")
    folder = registry.find(run.from_, "text")
    text, vocabularies = load_text(text_source(run.from_))
    served = model_folder.read_card(folder)
    backbone = registry.load_backbone(str(served["backbone"]))
    options = training_options(run, config=text.config, dimension=text.out.out_features)
    run = replace(run, lang=tuple(vocabularies))
    train, validation = train_and_validation(run, backbone, listener, run.flip)
    corpus = existing_corpus(run, vocabularies, train.data, validation.data, listener)
    model = DualEncoder(vocabularies, {}, backbone.dimension, options, text=text)
    load_projection(folder, model.image)
    known = concepts.all_concepts().keys() - (frozenset() if run.all_concepts else held_out())
    sentences = sentence_encoder(run, listener)
    anchors = name_anchors(text, vocabularies, sentences, sorted(known))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    return _Started(
        run,
        options,
        model,
        backbone.name,
        backbone,
        corpus,
        train,
        validation,
        anchors,
        initial,
        card={"started_from": f"{served['name']}@{served['digest']}"},
    )


def find_teacher(run: TextRun) -> ClipTextEncoder | None:
    """The text encoder of the run's teacher; TrainingProblem for another kind of model."""
    if run.teacher is None:
        if run.sentences:
            raise TrainingProblem("sentences without images need a --teacher that reads them")
        return None
    if run.backbone:
        raise TrainingProblem("the backbone is the image tower of the --teacher; leave it out")
    if run.variant != "shared":
        raise TrainingProblem(f"--variant {run.variant} has no teacher; leave it out")
    text = registry.load(run.teacher).text
    if not isinstance(text, ClipTextEncoder):
        raise TrainingProblem(
            f"{run.teacher} is no CLIP-like model; a teacher is open_clip:MODEL or its export"
        )
    return text


def read_sentences(files: Iterable[Path], languages: Sequence[str]) -> Mapping[str, list[str]]:
    """Sentences by language, one a line; those of other languages are left out.

    TrainingProblem for a file without any.
    """
    by_language: dict[str, list[str]] = {language: [] for language in languages}
    for file in files:
        before = sum(map(len, by_language.values()))
        with open_text(file) as lines:
            for line in filter(None, map(str.strip, lines)):
                language = detect(line)
                if language in by_language:
                    by_language[language].append(simplify(line) if language == "zh" else line)
        if sum(map(len, by_language.values())) == before:
            raise TrainingProblem(
                f"no sentence in {', '.join(languages)} in {file}: the teacher reads no others; "
                "write one a line"
            )
    return by_language


def teach(run: TextRun, teacher: ClipTextEncoder, corpus: Corpus, listener: Listener) -> Corpus:
    """The corpus with the teacher's text vectors of all training captions in its languages."""
    cached = CachedSentenceEncoder(
        teacher.tower,
        f"teacher {teacher.digest}",
        FeatureCache(run.features),
        listener.report("teacher's text vectors"),
    )
    encoded = {
        language: taught(captions, cached) if language in teacher.reads else captions
        for language, captions in corpus.train.items()
    }
    return replace(corpus, train=encoded)


def taught(captions: Captions, teacher: EncodesSentences) -> Captions:
    """Captions with the teacher's text vectors of their texts."""
    if not len(captions):
        return captions
    vectors = teacher.encode(captions.texts)
    return replace(captions, teacher=np.asarray(vectors, np.float16))


def train_projection(run: ProjectionRun, listener: Listener) -> Path:
    """A projection of another backbone's features into the space of the text model `run.text`."""
    backbone = registry.load_backbone(run.backbone)
    text = text_source(run.text or registry.DEFAULT_MODEL)
    network, vocabularies = load_text(text)
    train_features, validation_features = train_and_validation(run, backbone, listener, run.flip)
    run = replace(run, lang=tuple(vocabularies))
    sentences = sentence_encoder(run, listener)
    splits = (train_features.data, validation_features.data)
    table, (train_rows, validation_rows) = freeze_text(
        network, [captions_of(data, vocabularies, sentences) for data in splits]
    )
    # The caption vectors are fixed, so a loss between them would train nothing.
    options = training_options(run, dimension=network.out.out_features, caption_loss_weight=0.0)
    model = DualEncoder(vocabularies, {}, backbone.dimension, options, text=table)
    validation = TrainingSet(validation_features.views, validation_rows)
    shown = shown_concepts(train_features.data)
    train = TrainingSet(train_features.views, train_rows, shown=shown)
    best = fit(run, Trainer(model, train, validation, options, checkpoint_of(run)), listener)
    card = {
        **card_of(run, options, train, best),
        "description": f"{backbone.name} in the space of {text}",
        **requirements_of(run, options.dimension, run.backbone, backbone.digest),
    }
    write_projection(model, text, validation, run.folder, card)
    serve_like(run, run.folder, listener)
    checkpoint_of(run).unlink(missing_ok=True)
    return run.folder


def write_projection(
    model: DualEncoder, text: str, validation: TrainingSet, folder: Path, card: Mapping[str, Any]
) -> None:
    """Write a model folder that has an image projection and uses the encoders of `text`."""
    text_folder = registry.find(text, "text")
    export_projection(model.image, folder)
    full_card = {
        **card,
        "text": registry.reference(text),
        "text_digest": model_folder.read_card(text_folder)["digest"],
        **asdict(calibrate(model, QueryBank.load(text_folder), validation)),
    }
    finish_card(folder, full_card)
