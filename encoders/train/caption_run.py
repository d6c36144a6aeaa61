"""The run that trains a captioner on a fixed backbone's feature maps, and its schemes by name.

monolingual       one language, captions written for these photographs
mixed             all captions at once, whoever wrote them
artificial-token  several languages, one decoder that is told the language by its first token
alternate         several languages, a decoder for each, batches in turn (Miyazaki 2016)
transfer          English first; then a new decoder for the other languages keeps the embedding
                  of the image (Miyazaki 2016)
sequential        all captions first; then those written for these photographs, at a tenth of the
                  learning rate (COCO-CN)
self-training     a trained captioner writes captions for the training images; those that agree most
                  with people's, in any language, are learned from, too (Zhu 2016)
self-critical     samples of a trained captioner are rewarded for CIDEr-D (Rennie 2017)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.caption_search import Beam, CaptionVocabulary
from capsearch.encoders.models.captioner import PART as MATCH
from capsearch.encoders.models.captioner import (
    WEIGHTS_FILE,
    WHITENING,
    BuiltInCaptioner,
    CaptionMatch,
    with_tags,
)
from capsearch.encoders.models.image import ImageNetwork, check_backbone
from capsearch.encoders.models.tagger import BuiltInTagger
from capsearch.encoders.settings import DEFAULT_BACKBONE, CaptionRun
from capsearch.encoders.train.activations import EncodedImages, load_feature_maps
from capsearch.encoders.train.caption_match import fit_confidence, fit_match, pick, with_match
from capsearch.encoders.train.caption_metrics import references_of
from capsearch.encoders.train.caption_trainer import (
    CaptionSet,
    CaptionTrainer,
    ReferenceSet,
    SelfCriticalTrainer,
    ciders,
    first_images,
)
from capsearch.encoders.train.captions import (
    Captions,
    encode,
    main_captions,
    tokenise,
    vocabulary_of,
)
from capsearch.encoders.train.decoders import CaptionConfig, CaptionNetwork
from capsearch.encoders.train.loop import Epoch, interpolate_weights
from capsearch.encoders.train.run import (
    Listener,
    checkpoint_of,
    fit,
    head_card,
    rounded,
    training_options,
    used_part,
    whole_split,
)
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import ImageFeatures

ALL = "all"  # the decoder of all languages


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a scheme.

    `main`: only captions of the main sources. `keep`: what it takes from the stage before.
    `separate`: a decoder for each language, in alternating batches. `rewarded`: captions are
    sampled and rewarded, instead of learned word by word. `picked`: captions that the initial
    captioner writes are learned from, too.
    """

    languages: tuple[str, ...]
    main: bool = True
    keep: Literal["nothing", "image", "everything"] = "nothing"
    separate: bool = False
    lr: float = 1.0  # factors of the run's learning rate and epochs
    epochs: float = 1.0
    rewarded: bool = False
    picked: bool = False

    @property
    def needs_captioner(self) -> bool:
        """Whether it starts from a trained captioner."""
        return self.rewarded or self.picked

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The languages of each decoder."""
        if self.separate:
            return {language: (language,) for language in self.languages}
        return {ALL: self.languages}


def _monolingual(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    if len(languages) > 1:
        raise TrainingProblem("monolingual training has one language; give one --lang")
    return (Stage(languages),)


def _transfer(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    others = tuple(language for language in languages if language != "en")
    if not others or "en" not in languages:
        raise TrainingProblem("transfer goes from English to other languages; add their --lang")
    return Stage(("en",)), Stage(others, keep="image")


def _several(languages: tuple[str, ...], scheme: str) -> tuple[str, ...]:
    if len(languages) < 2:
        raise TrainingProblem(f"{scheme} training has several languages; give more than one --lang")
    return languages


def _sequential(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    last = Stage(languages, keep="everything", lr=0.1, epochs=0.4)
    return Stage(languages, main=False), last


SCHEMES: Mapping[str, Callable[[tuple[str, ...]], tuple[Stage, ...]]] = {
    "sequential": _sequential,
    "mixed": lambda languages: (Stage(languages, main=False),),
    "artificial-token": lambda languages: (Stage(_several(languages, "artificial-token")),),
    "transfer": _transfer,
    "alternate": lambda languages: (Stage(_several(languages, "alternate"), separate=True),),
    "monolingual": _monolingual,
    "self-training": lambda languages: (Stage(languages, keep="everything", picked=True),),
    "self-critical": lambda languages: (Stage(languages, keep="everything", rewarded=True),),
}


def stages_of(scheme: str, languages: tuple[str, ...]) -> tuple[Stage, ...]:
    """The stages of a scheme; TrainingProblem for one that these languages cannot have."""
    if scheme not in SCHEMES:
        raise TrainingProblem(f"no scheme called '{scheme}'; there is {', '.join(SCHEMES)}")
    return SCHEMES[scheme](languages)


_CANDIDATES = 10  # captions of each image that the match chooses from


_REWARDED_EMA = 0.2  # epochs: rewards change a trained network quickly


@dataclass(frozen=True, slots=True)
class CaptionJob:
    """A run with its data."""

    run: CaptionRun
    config: CaptionConfig
    backbone: ImageNetwork
    tagger: BuiltInTagger | None
    train: EncodedImages
    validation: EncodedImages
    captions: Mapping[str, Captions]
    vocabulary: CaptionVocabulary
    listener: Listener

    @property
    def beam(self) -> Beam:
        """The search of the finished model, which also writes the captions that are picked."""
        return Beam(self.run.beam, self.config.max_words, candidates=_CANDIDATES)

    def captions_of(self, stage: Stage, language: str) -> Captions:
        """The captions that a stage learns from."""
        captions = self.captions[language]
        return main_captions(captions) if stage.main else captions

    def encoded(self, stage: Stage) -> Mapping[str, Captions]:
        """A stage's captions by language, without those that have an unknown word."""
        return {
            language: encode(self.captions_of(stage, language), self.vocabulary, language)
            for language in stage.languages
        }

    def references(self, languages: tuple[str, ...]) -> ReferenceSet:
        """The validation images with what people wrote of them."""
        return ReferenceSet(self.validation, references_of(self.validation.data, languages))


def train_caption(run: CaptionRun, listener: Listener) -> Path:
    """Train a captioner by a scheme; the new model's folder."""
    config = CaptionConfig(architecture=run.decoder, width=run.width, layers=run.layers)
    stages = stages_of(run.scheme, run.languages)
    if stages[0].needs_captioner and not run.from_:
        raise TrainingProblem(f"{run.scheme} training starts from a captioner: give --from")
    initial = registry.load_captioner(run.from_) if run.from_ else None
    if initial is not None:
        run, config = _like(run, initial)
        stages = (replace(stages[0], keep="everything"), *stages[1:])
    job = _prepare(run, config, initial, listener)
    if not run.resume:
        _remove_checkpoints(run, len(stages))
    network = None if initial is None else _loaded(job, stages[0], initial)
    if network is not None and stages[0].picked:
        job = replace(job, captions=_with_picked(job, stages[0], network))
    best, before = None, copy.deepcopy(network.state_dict()) if network is not None else None
    for number, stage in enumerate(stages):
        network = _network(job, stage, network)
        best = _train(job, stage, number, network)
    assert network is not None and best is not None  # a scheme has stages
    if before is not None:
        best = _interpolated(job, network, before, best)
    run = replace(run, lang=stages[-1].languages)
    _export(replace(job, run=run), stages[-1], network, best)
    _remove_checkpoints(run, len(stages))
    return run.folder


def _like(run: CaptionRun, initial: BuiltInCaptioner) -> tuple[CaptionRun, CaptionConfig]:
    """The run with the backbone, decoder, languages and tags of the model it starts from."""
    if set(run.languages) != set(initial.languages):
        raise TrainingProblem(
            f"{run.from_} writes {', '.join(initial.languages)}: give these --lang"
        )
    config = CaptionConfig(**initial.card["training"]["config"])
    backbone, tags = str(initial.card["backbone"]), initial.card.get("tagger")
    return replace(run, lang=initial.languages, backbone=backbone, tags=tags), config


def _loaded(job: CaptionJob, stage: Stage, initial: BuiltInCaptioner) -> CaptionNetwork:
    network = _network(job, replace(stage, keep="nothing"), None)
    if set(network.groups) != set(initial.decoders.groups):
        raise TrainingProblem(
            f"{initial.name} has other decoders than the scheme '{job.run.scheme}' trains"
        )
    network.load(initial.decoders.arrays)
    return network


def _prepare(
    run: CaptionRun, config: CaptionConfig, initial: BuiltInCaptioner | None, listener: Listener
) -> CaptionJob:
    backbone = registry.load_backbone(run.backbone or DEFAULT_BACKBONE)
    tagger = registry.load_tagger(run.tags) if run.tags else None
    if run.tags:
        check_backbone(model_folder.read_card(registry.find(run.tags, "tagger")), backbone)
    if initial is not None:  # of that name there may be another one now
        check_backbone(initial.card, backbone)
    train, validation = (
        _with_tags(_feature_maps(run, backbone, split, listener), tagger)
        for split in (run.train_split, run.val_split)
    )
    captions = tokenise(train.data, run.languages, config.max_words)
    vocabulary = initial.vocabulary if initial else vocabulary_of(captions, run.min_count)
    return CaptionJob(
        run, config, backbone, tagger, train, validation, captions, vocabulary, listener
    )


def _feature_maps(
    run: CaptionRun, backbone: ImageNetwork, split: str, listener: Listener
) -> EncodedImages:
    whole = whole_split(run, split)
    used, report = used_part(run, whole, split), listener.report(f"maps of {split}")
    return load_feature_maps(backbone, used, run.features, report, whole)


def _with_tags(images: EncodedImages, tagger: BuiltInTagger | None) -> EncodedImages:
    if tagger is None:
        return images
    return replace(images, pooled=with_tags(ImageFeatures(images.pooled), tagger).pooled)


def _network(job: CaptionJob, stage: Stage, before: CaptionNetwork | None) -> CaptionNetwork:
    """A new network, with what the stage takes from the one before."""
    groups = {name: job.vocabulary.only(*languages) for name, languages in stage.groups.items()}
    cells = (int(job.train.grid.shape[1]), int(job.train.grid.shape[2]))
    network = CaptionNetwork(job.train.pooled.shape[1], cells, groups, job.config, job.run.seed)
    if before is not None and stage.keep == "everything":
        network.load_state_dict(before.state_dict())
        return network
    if before is not None and stage.keep == "image":
        network.image.load_state_dict(before.image.state_dict())
    for name, languages in stage.groups.items():
        counts = {language: _counts(job, stage, language) for language in languages}
        network.decoder(name).set_frequencies(counts)
    return network


def _train(job: CaptionJob, stage: Stage, number: int, network: CaptionNetwork) -> Epoch:
    run = job.run
    options = training_options(
        run,
        lr=run.lr * stage.lr,
        epochs=max(1, round(run.epochs * stage.epochs)),
        **({"ema_epochs": _REWARDED_EMA} if stage.rewarded else {}),
    )
    validation = job.references(stage.languages)
    if not any(validation.references.values()):
        raise TrainingProblem(f"no captions to validate with in split '{run.val_split}'")
    trainer = (SelfCriticalTrainer if stage.rewarded else CaptionTrainer)(
        network,
        CaptionSet(job.train, job.encoded(stage)),
        validation,
        options,
        _checkpoint(run, number),
        alternate=stage.separate,
    )
    return fit(run, trainer, job.listener, first=number == 0)


def _interpolated(
    job: CaptionJob, network: CaptionNetwork, initial: Mapping[str, Tensor], best: Epoch
) -> Epoch:
    """With the weights between old and new that write the best captions by beam search."""
    validation = first_images(job.references(job.run.languages))

    def scores() -> Mapping[str, float]:
        return ciders(network.served(), validation, job.beam)

    return interpolate_weights(network, initial, replace(best, validation=scores()), scores)


def _with_picked(job: CaptionJob, stage: Stage, network: CaptionNetwork) -> Mapping[str, Captions]:
    """The captions, and those that the captioner itself writes of the same images.

    They are written anew when a run is resumed: the same, since the captioner is.
    """
    everything = job.encoded(replace(stage, main=False))
    arrays = fit_match(job.train.pooled, everything, job.vocabulary)
    picked = pick(
        network.served(),
        CaptionMatch(arrays, 0.0),
        job.train,
        everything,
        job.beam,
        job.listener.report("captions of train"),
    )
    return {language: own + picked[language] for language, own in job.captions.items()}


def _counts(job: CaptionJob, stage: Stage, language: str) -> NDArray[np.int64]:
    """(W + 1,) how often each output occurs in the stage's captions."""
    counts = np.zeros(len(job.vocabulary.words[language]) + 1, np.int64)
    for words in job.captions_of(stage, language).words:
        ids = job.vocabulary.encode(words, language)
        if ids is not None:
            np.add.at(counts, ids, 1)
    return counts


def _remove_checkpoints(run: CaptionRun, stages: int) -> None:
    for number in range(stages):
        _checkpoint(run, number).unlink(missing_ok=True)


def _checkpoint(run: CaptionRun, stage: int) -> Path:
    return checkpoint_of(run, f".{stage + 1}")


def _export(job: CaptionJob, stage: Stage, network: CaptionNetwork, best: Epoch) -> None:
    """Write the model's folder: weights, words, and a card with the confidence of captions.

    The match of captions and images is fitted on the captions of the last stage.
    """
    run, folder, beam = job.run, job.run.folder, job.beam
    validation = job.references(run.languages)
    match = fit_match(job.train.pooled, job.encoded(stage), job.vocabulary)
    decoders = with_match(network.served(), match, validation, beam)
    confidence = fit_confidence(decoders, validation, beam)
    arrays = {**network.arrays(), **{f"{MATCH}.{name}": array for name, array in match.items()}}
    model_folder.save_arrays(folder / WEIGHTS_FILE, arrays, exact=[f"{MATCH}.{WHITENING}"])
    job.vocabulary.only(*run.languages).save(folder)
    card: dict[str, Any] = {
        **head_card(run, job.backbone, run.backbone or DEFAULT_BACKBONE, best, _training(job)),
        "description": f"captions in {', '.join(run.languages)} on {job.backbone.name}",
        "architecture": job.config.architecture,
        "groups": {name: list(group.languages) for name, group in network.groups.items()},
        "beam": asdict(beam),
        "match_weight": 0.0 if decoders.match is None else decoders.match.weight,
        "validation_beam": rounded(ciders(decoders, validation, beam)),
        "confidence": {language: asdict(fitted) for language, fitted in confidence.items()},
    }
    if job.tagger is not None and run.tags:
        card |= {
            "tagger": registry.reference(run.tags),
            "tagger_digest": job.tagger.name.rpartition("@")[2],
        }
    digest = model_folder.digest(folder, str(card["backbone_digest"]), str(card["beam"]))
    model_folder.write_card(folder, {"kind": "captioner", **card, "digest": digest})


def _training(job: CaptionJob) -> Mapping[str, Any]:
    return {
        "images": len(job.train),
        "captions": {language: len(captions) for language, captions in job.captions.items()},
        "scheme": job.run.scheme,
        **({"initial": registry.reference(job.run.from_)} if job.run.from_ else {}),
        "config": asdict(job.config),
    }
