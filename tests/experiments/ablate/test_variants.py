"""From the config to variants: what each is trained and evaluated with, and what is refused; nothing is loaded."""

from __future__ import annotations

import pytest

from configs import ablation as config_file
from experiments import plan
from experiments.ablate import variants


def of(options="", **changes):
    """The variants by name. changes: name -> what a variant of ours changes."""
    config = config_file.get_config(options)
    for name, change in changes.items():
        config.variant[name] = change
        config.ablation.variants += (name,)
    resolved = variants.resolve(config)
    return resolved, {variant.name: variant for variant in variants.of(resolved)}


def method_of(config, variant):
    """What is built in the end."""
    resolved = plan.resolve(variants.evaluation(config, variant, "FILE", config.eval.tasks))
    return plan.build(resolved, plan.cells(resolved)[0])


def test_all_variants_and_whose_gates_they_use():
    """A lookahead needs no training of its own; everything else does, and base comes first."""
    config, found = of()
    assert list(found) == ["base", *config_file.VARIANTS] == list(config.ablation.variants)
    shared = {name for name, variant in found.items() if variant.trained_as != name}
    assert shared == {"lookahead_2", "lookahead_128", "reservoir"}
    assert {found[name].trained_as for name in shared} == {"base"}
    assert found["base"].changes == () and found["lookahead_2"].changes == ("lookahead=2",)
    assert found["no_sinks"].changes == ("cache.num_sinks=0", "loss.sinks=0")


def test_changes_reach_training_and_cache():
    """An option of 0 must not become the default again."""
    config, found = of()
    assert (found["base"].training.loss.sinks, method_of(config, found["base"]).num_sinks) == (4, 4)
    assert (found["no_sinks"].training.loss.sinks, method_of(config, found["no_sinks"]).num_sinks) == (0, 0)
    per_head = method_of(config, found["per_head"])
    assert (per_head.name, per_head.allocator.name, per_head.scorer.gates) == ("trimkv", "per_head", "FILE")
    assert method_of(config, found["lookahead_128"]).scorer.lookahead == 128
    assert method_of(config, found["reservoir"]).sampler.name == "reservoir"
    gate = found["tied_three_layer"].training.gate
    assert (gate.tied, gate.kind, found["normalised"].training.gate.normalised) == (True, "three_layer", True)
    assert (found["base"].training.loss.cut_most, found["fading"].training.loss.cut_most) == (0.25, 0.0)
    assert found["regress_first"].training.train.regress_steps == 20 and found["seed_1"].training.train.seed == 1


def test_base_is_always_there_and_every_example_is_shown():
    """Differences need it; kinds of tokens need the tokens of all examples."""
    config, found = of("variants=tied,n=6,limit=5,steps=20")
    assert list(found) == ["base", "tied"] and found["tied"].training.train.steps == 20
    evaluated = variants.evaluation(config, found["tied"], "FILE", config.eval.tasks).eval
    assert evaluated.show_examples == 5 and evaluated.full_floor == 0
    assert variants.evaluation_of_full(config).eval.methods == ("full",)


def test_gates_that_are_given_serve_all_that_are_trained_alike():
    """No variant may silently be trained although the gates of its training are there."""
    _, found = of("variants=tied+lookahead_2,gates=base=some/file+tied=other=file")
    assert {name: v.given for name, v in found.items()} == {
        "base": "some/file", "tied": "other=file", "lookahead_2": "some/file",
    }  # fmt: skip


def test_the_same_settings_written_differently_are_one_config():
    """They share a folder."""
    one, other = of("variants=base+tied,ratios=0.25,length=1024"), of("variants=tied+base,ratios=0.250")
    assert one[0].to_dict() == other[0].to_dict()


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (
            "variants=tide",
            {},
            "ablation.variants='tide' is not known; allowed: base, fading, lookahead_128, lookahead_2, no",
        ),
        ("variants=tied,gates=FILE", {}, "ablation.gates takes VARIANT=FILE, with a variant of base, tied; got 'FILE'"),
        ("variants=tied,gates=three_layer=F", {}, "with a variant of base, tied; got 'three_layer=F'"),
        ("variants=tied,gates=tied=F+tied=G", {}, "names 'tied' twice"),
        ("variants=reservoir,gates=reservoir=F", {}, "'reservoir' uses the gates of 'base'"),
        ("variants=regress_first,steps=15", {}, "variant 'regress_first': train.regress_steps=20 are more than"),
        ("variants=base,steps=5", {}, "train.warmup=10 must be below train.steps=5"),
        ("", {"x": {"eval": {"seed": 3}}}, "variant 'x': it changes 'eval'; allowed: gate, loss, data, train, cache"),
        ("", {"x": {"gate": {"widht": 3}}}, "variant 'x': Key \"widht\" does not exist"),
        ("", {"x": {"gate": {"width": "3"}}}, "variant 'x': Could not override field 'width'"),
        ("", {"x": {"gate": {"width": 64}}}, "variant 'x' is the same as 'base': it changes nothing that is used"),
        ("", {"x": {"method": {"trimkv": {"lookahead": 2}}}}, "variant 'x' is the same as 'base'"),
        ("", {"x": {"cache": {"num_sinks": 999}}}, "variant 'x': method 'global_retention' at budget 256"),
        ("", {"full": {"gate": {"width": 8}}}, "a variant cannot be called 'full'"),
        ("ratios=2", {}, "eval.ratios=2.0 is out of range"),
        ("tasks=niah", {}, "eval.tasks='niah' is not known"),
    ],
)
def test_what_cannot_run_is_refused(options, changes, message):
    with pytest.raises(ValueError, match=message):
        of(options, **changes)
