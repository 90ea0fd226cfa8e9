"""The pipeline: prompts or labels in, pictures out, in the manner of diffusers."""

import numpy as np
import pytest
import torch
from PIL import Image

import rti
from close import assert_close
from rti.backbones.minit2i import PreambleBlock
from rti.flow import draw_noise, time_grid
from rti.images import to_pil, to_tensor
from rti.text.encoder import T5TextEncoder
from tiny import (
    CORE,
    assert_same_state,
    make_backbone,
    make_inputs,
    preset_sizes,
    randomise_trainable,
    refused,
    save_jit,
    save_minit2i,
    snapshot,
)

WORDS = ["a", "red", "blue", "cube", "ball", "on", "the", "table", "left", "of", "right"]
CONFIG = rti.RegionConfig(core=CORE, cuts="merge", lora_rank=2, lora_alpha=2)
QUICK = dict(num_inference_steps=2, guidance_scale=2.0, output_type="pt", progress=False)


def save_text_encoder(folder) -> None:
    """A T5 as small as can be, and a tokenizer that knows a few words, in a pipeline's layout."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder / "tokenizer")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(vocabulary), d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2, tie_word_embeddings=False
    )
    T5EncoderModel(config).save_pretrained(folder / "text_encoder")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A MiniT2I in the layout of diffusers: transformer, text_encoder, tokenizer."""
    folder = tmp_path_factory.mktemp("release")
    save_minit2i(folder / "transformer")
    save_text_encoder(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(release, tmp_path_factory):
    """An adapter of that release, as training would leave it."""
    folder = tmp_path_factory.mktemp("adapter")
    randomise_trainable(rti.attach(rti.load_backbone(release), CONFIG)).save_pretrained(folder)
    return folder


@pytest.fixture
def pipe(release):
    return rti.Pipeline.from_pretrained(release)


@pytest.fixture
def elastic(adapter):
    return rti.Pipeline.from_pretrained(adapter)


@pytest.fixture
def jit():
    return rti.Pipeline(make_backbone("jit"))


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


def close(actual, expected, tolerance=1e-4):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


# Loading.


def test_an_untrained_adapter_is_a_fresh_interface(release):
    """With as many regions as patches it is the frozen model; fewer change the picture."""
    pipe = rti.Pipeline.from_pretrained(release, adapter="untrained")
    assert (pipe.elastic.config.cuts, pipe.elastic.config.cuts_from) == ("merge", "estimate")

    def draw(budget):
        return pipe("a red cube", generator=torch.Generator().manual_seed(1), budget=budget, **QUICK).images

    torch.testing.assert_close(draw(1.0), draw("dense"), rtol=1e-4, atol=1e-4)
    assert not torch.equal(draw(0.25), draw("dense"))


def test_a_pipeline_finds_the_text_encoder_beside_its_transformer(pipe):
    states, mask = pipe.text_encoder(["a red cube", "ball"], 6)
    assert states.shape == (2, 6, 12)
    assert mask.tolist() == [[True] * 4 + [False] * 2, [True] * 2 + [False] * 4]  # with the end-of-sentence token
    assert mask.dtype == torch.bool
    assert not pipe.text_encoder.encoder.training


def test_the_text_encoder_is_loaded_when_first_needed(release, monkeypatch):
    loaded = []
    original = T5TextEncoder.from_pretrained.__func__
    monkeypatch.setattr(
        T5TextEncoder, "from_pretrained", classmethod(lambda cls, *args: loaded.append(args[0]) or original(cls, *args))
    )
    pipe = rti.Pipeline.from_pretrained(release)
    assert loaded == []
    pipe("a cube", **QUICK)
    pipe("a ball", **QUICK)
    assert loaded == [release]


def test_a_text_encoder_of_the_users_own_is_used(release):
    def encoder(prompts, length):
        calls.append((list(prompts), length))
        return torch.zeros(len(prompts), length, 12), torch.ones(len(prompts), length)

    calls = []
    for pipe in (
        rti.Pipeline(rti.load_backbone(release), encoder),
        rti.Pipeline.from_pretrained(release, text_encoder=encoder),
    ):
        pipe(["a cube", "b"], **QUICK)
    assert calls == [(["a cube", "b"], 6)] * 2
    by_name = rti.Pipeline.from_pretrained(release, text_encoder=str(release))
    assert isinstance(by_name.text_encoder, T5TextEncoder)


def test_without_a_text_encoder_a_prompt_is_refused(release, tmp_path, monkeypatch):
    with refused("text encoder", "rti.Pipeline(model, text_encoder)"):
        rti.Pipeline(rti.load_backbone(release))("a cube", **QUICK)
    with refused("google/flan-t5-large"):  # the one that the config names, and no hub to fetch it from
        rti.Pipeline.from_pretrained(save_minit2i(tmp_path / "alone"))("a cube", **QUICK)
    with refused(tmp_path):
        rti.Pipeline.from_pretrained(release, text_encoder=tmp_path)("a cube", **QUICK)


def test_an_adapter_knows_its_backbone_and_is_merged(adapter, release, elastic):
    expected = rti.load(adapter)
    x, t, condition = make_inputs(expected.backbone)
    for pipe in (
        elastic,
        rti.Pipeline.from_pretrained(release, adapter=adapter),
        rti.Pipeline.from_pretrained(str(release), adapter=str(adapter), fuse=False),
    ):
        assert isinstance(pipe.model, rti.ElasticModel)
        with torch.no_grad():
            assert_close(pipe.model(x, t, condition, budget=9), expected(x, t, condition, budget=9))
    assert not pipe.model.fused
    assert elastic.model.fused
    merged, unmerged = (
        p("a cube", generator=seeds(0), **QUICK).images for p in (rti.Pipeline.from_pretrained(adapter), pipe)
    )
    close(merged, unmerged)


def test_options_reach_the_loader(tmp_path, small_presets):
    save_jit(tmp_path, config=False, **preset_sizes("jit-l16"))
    pipe = rti.Pipeline.from_pretrained(tmp_path, size="l16", torch_dtype=torch.bfloat16)
    assert pipe.backbone.dtype == torch.bfloat16
    assert_same_state(pipe.backbone, snapshot(make_backbone("jit", **preset_sizes("jit-l16")).to(torch.bfloat16)))
    assert len(rti.Pipeline.from_pretrained("jit-b16", init="random", seed=1)(label=1, **QUICK).images) == 1
    with refused("'nothing'"):
        rti.Pipeline.from_pretrained("jit-b16", init="nothing")


def test_a_pipeline_in_bfloat16_makes_pictures_close_to_float32(release, pipe):
    half = rti.Pipeline.from_pretrained(release, torch_dtype=torch.bfloat16)
    result = half("a red cube", generator=seeds(1), **QUICK).images
    expected = pipe("a red cube", generator=seeds(1), **QUICK).images
    assert half.text_encoder.encoder.dtype == torch.bfloat16
    assert result.dtype == torch.float32
    assert (result - expected).abs().mean() < 0.02


# Pictures.


@torch.no_grad()
def test_a_picture_is_what_sampling_gives(pipe):
    """From the noise of its generator, with the family's noise scale, by the text encoder's states."""
    noise = draw_noise((3, 32, 32), seeds(3), 2.0)
    states, mask = pipe.text_encoder(["a red cube"], 6)
    condition = pipe.backbone.condition(text=states, mask=mask)
    expected = rti.sample(pipe.backbone, noise, condition, steps=2, guidance_scale=2.0).clamp(-1, 1) / 2 + 0.5
    close(pipe("a red cube", generator=seeds(3), **QUICK).images, expected, 1e-6)


@pytest.mark.parametrize("output_type", ["pil", "np", "pt"])
def test_output_types_follow_diffusers(pipe, output_type):
    options = QUICK | {"output_type": output_type}
    images = pipe(["a cube", "a ball"], generator=seeds(0, 1), **options).images
    reference = pipe(["a cube", "a ball"], generator=seeds(0, 1), **QUICK).images
    if output_type == "pil":
        assert [picture.size for picture in images] == [(32, 32)] * 2
        assert {picture.mode for picture in images} == {"RGB"}
        assert images[1].tobytes() == to_pil(reference * 2 - 1)[1].tobytes()
        return
    if output_type == "np":
        assert isinstance(images, np.ndarray)
        assert images.shape == (2, 32, 32, 3)
        images = torch.from_numpy(images).permute(0, 3, 1, 2)
    assert images.dtype == torch.float32
    assert images.shape == (2, 3, 32, 32)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0.1
    close(images, reference, 0)


def test_the_default_output_is_pil_and_a_bar_is_shown(pipe, capsys):
    result = pipe("a cube", num_inference_steps=1, guidance_scale=1.0)
    assert isinstance(result.images[0], Image.Image)
    assert "1/1" in capsys.readouterr().err
    pipe("a cube", **QUICK)
    assert capsys.readouterr().err == ""


def test_a_prompt_and_a_list_of_one_prompt_are_the_same(pipe):
    one = pipe("a red cube", generator=seeds(0), **QUICK).images
    assert torch.equal(pipe(["a red cube"], generator=seeds(0), **QUICK).images, one)
    assert torch.equal(pipe(("a red cube",), generator=seeds(0)[0], **QUICK).images, one)
    assert not torch.equal(pipe("a blue cube", generator=seeds(0), **QUICK).images, one)
    assert not torch.equal(pipe("a red cube", generator=seeds(1), **QUICK).images, one)


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 100])
def test_the_batch_size_never_changes_a_picture(elastic, batch_size):
    prompts = ["a red cube", "a ball", "the table"]
    options = QUICK | dict(budget=0.25, num_images_per_prompt=2)
    alone = [
        elastic(prompt, generator=seeds(2 * i + j), **QUICK, budget=0.25).images
        for i, prompt in enumerate(prompts)
        for j in range(2)
    ]
    together = elastic(prompts, generator=seeds(*range(6)), batch_size=batch_size, **options).images
    assert len(together) == 6
    close(together, torch.cat(alone))


def test_pictures_of_one_prompt_come_next_to_each_other(pipe):
    images = pipe(["a cube", "a ball"], generator=seeds(0, 0, 0, 0), num_images_per_prompt=2, **QUICK).images
    close(images[0], images[1])
    close(images[2], images[3])
    assert (images[0] - images[2]).abs().max() > 1e-3


def test_one_generator_draws_for_all_pictures_in_turn(pipe):
    generator = torch.Generator().manual_seed(4)
    images = pipe("a cube", generator=generator, num_images_per_prompt=3, **QUICK).images
    again = torch.Generator().manual_seed(4)
    singles = [pipe("a cube", generator=again, **QUICK).images for _ in range(3)]
    close(images, torch.cat(singles))
    assert torch.equal(generator.get_state(), again.get_state())


def test_without_a_generator_the_global_seed_decides(pipe):
    """As in diffusers; and torch's global state is drawn from, not set anew."""
    torch.manual_seed(11)
    first, second = (pipe("a cube", **QUICK).images for _ in range(2))
    after = torch.rand(1)
    assert not torch.equal(first, second)
    torch.manual_seed(11)
    assert torch.equal(pipe("a cube", **QUICK).images, first)
    pipe("a cube", **QUICK)
    assert torch.equal(torch.rand(1), after)


def test_labels_of_jit(jit):
    images = jit(label=[3, 7], generator=seeds(0, 0), **QUICK).images
    close(jit(label=3, generator=seeds(0), **QUICK).images, images[:1])
    assert torch.equal(jit([3, 7], generator=seeds(0, 0), **QUICK).images, images)  # in the prompt's place
    assert (images[0] - images[1]).abs().max() > 1e-3
    two = jit(label=3, generator=seeds(0, 1), num_images_per_prompt=2, **QUICK).images
    close(two[:1], images[:1])


def test_a_jit_pipeline_is_loaded_and_needs_no_text_encoder(tmp_path):
    pipe = rti.Pipeline.from_pretrained(save_jit(tmp_path))
    assert len(pipe(label=[0, 1, 2], **QUICK).images) == 3


# The prompt.


def test_a_prompt_longer_than_the_limit_is_cut(pipe):
    """Six tokens: five words and the end of the sentence."""
    short = pipe("a red cube on the", generator=seeds(0), **QUICK).images
    long = pipe("a red cube on the table left of a blue ball", generator=seeds(0), **QUICK).images
    assert torch.equal(short, long)


def test_each_prompt_is_encoded_once(elastic, monkeypatch):
    """One call of the text encoder with each prompt once, and one pass of the preamble per prompt, however many
    pictures it makes; plus one row for the unguided branch of each batch."""
    encode, encoded = elastic.text_encoder, []
    preamble, rows = PreambleBlock.forward, []
    monkeypatch.setattr(elastic, "_text_encoder", lambda *args: encoded.append(args[0]) or encode(*args))
    monkeypatch.setattr(PreambleBlock, "forward", lambda *args: rows.append(len(args[1])) or preamble(*args))
    elastic(["a cube", "a ball"], num_images_per_prompt=3, batch_size=2, **QUICK)
    assert encoded == [["a cube", "a ball"]]
    blocks = elastic.backbone.config.txt_preamble_depth
    assert sum(rows) == (2 + 3) * blocks


# Budget and dense.


def draw(pipe, budget, **options):
    return pipe("a cube", generator=seeds(0), budget=budget, **QUICK | options).images


def test_the_budget_changes_the_picture(elastic):
    full, small = draw(elastic, 64), draw(elastic, 6)
    assert (full - small).abs().max() > 1e-3
    steps = []
    draw(elastic, lambda step: steps.append(step) or 8, return_regions=True)
    assert steps == [0, 1]


def test_a_budget_may_be_any_of_the_words_of_the_command_line(elastic, pipe):
    quarter = draw(elastic, 16)
    for budget in (0.25, "25%", "16", " 0.25 ", [16, "25%"], lambda step: "25%"):
        assert torch.equal(draw(elastic, budget), quarter)
    dense = draw(pipe, None)
    for model in (elastic, pipe):
        for budget in ("dense", " Dense ", None):  # no budget is dense, everywhere
            assert torch.equal(draw(model, budget), dense)
    assert torch.equal(draw(elastic, "100%"), draw(elastic, 64))
    assert (draw(elastic, 1.0) - dense).abs().max() > 1e-3  # all patches, but with the adapter


@pytest.mark.parametrize("merge", [False, True])
def test_dense_is_the_plain_backbones_pipeline(adapter, pipe, merge):
    elastic = rti.Pipeline.from_pretrained(adapter, fuse=merge)
    before = elastic("a cube", generator=seeds(0), budget=9, **QUICK).images
    pipe.backbone.requires_grad_(False)  # torch multiplies weights that train in another order
    expected = pipe("a cube", generator=seeds(0), **QUICK).images
    assert torch.equal(elastic("a cube", generator=seeds(0), dense=True, **QUICK).images, expected)
    assert torch.equal(pipe("a cube", generator=seeds(0), dense=True, **QUICK).images, expected)
    assert torch.equal(elastic("a cube", generator=seeds(0), budget=9, **QUICK).images, before)
    assert elastic.model.fused == merge


@pytest.mark.parametrize(("family", "source"), [("minit2i", "features"), ("minit2i", "estimate"), ("jit", "estimate")])
@pytest.mark.parametrize("image", [None, Image.new("RGB", (32, 32), (200, 10, 90))])
def test_the_regions_given_back_are_those_of_the_last_step(pipe, family, source, image, monkeypatch):
    config = rti.RegionConfig(core=CORE, cuts="merge", cuts_from=source, lora_rank=2)
    model = randomise_trainable(
        rti.attach(pipe.backbone if family == "minit2i" else make_backbone("jit"), config)
    ).eval()
    regions = rti.Pipeline(model, pipe.text_encoder)
    used, original = [], type(model.reduction).regions
    monkeypatch.setattr(type(model.reduction), "regions", lambda *args: used.append(original(*args)) or used[-1])
    options = QUICK | dict(num_inference_steps=4, budget=lambda step: 20 - step, batch_size=2)
    options |= {} if image is None else dict(image=image, strength=0.3)
    result = regions(["a cube", "a ball"] if family == "minit2i" else [1, 2], return_regions=True, **options)
    assert result.regions.shape == (2, 64)
    assert result.regions.amax(dim=1).tolist() == [16, 16]  # 17 regions at the last step
    assert torch.equal(result.regions, used[-2][:2])  # the last one is the question for them
    assert regions("a cube" if family == "minit2i" else 1, **QUICK).regions is None


# Image to image.


@pytest.fixture
def photograph():
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_full_strength_forgets_the_image(pipe, photograph):
    plain = pipe("a cube", generator=seeds(0), **QUICK).images
    assert torch.equal(pipe("a cube", image=photograph, strength=1.0, generator=seeds(0), **QUICK).images, plain)


def test_a_callback_may_give_back_other_latents_as_in_diffusers(jit, monkeypatch):
    """Each step starts from what the callback left: here one half of the picture is held as it was."""
    held, seen = torch.full((1, 3, 32, 16), 0.25), []
    forward = rti.Backbone.forward
    monkeypatch.setattr(rti.Backbone, "forward", lambda *args, **rest: seen.append(args[1]) or forward(*args, **rest))

    def hold(pipe, step, when, values):
        values["latents"] = values["latents"].clone()
        values["latents"][..., :16] = held
        return values

    options = QUICK | dict(num_inference_steps=3, guidance_scale=1.0, output_type="pt")
    images = jit(label=1, generator=seeds(2), callback_on_step_end=hold, **options).images
    close(images[..., :16], (held + 1) / 2, 1e-6)
    assert len(seen) == 5  # Heun: two a step, and one for the last
    assert all(torch.equal(x[..., :16], held) for x in seen[2::2])
    plain = jit(label=1, generator=seeds(2), **options).images
    assert not torch.equal(plain[..., 16:], images[..., 16:])  # the rest has seen it
    untouched = jit(label=1, generator=seeds(2), callback_on_step_end=lambda *_: {}, **options).images
    assert torch.equal(untouched, plain)


@pytest.mark.parametrize(("latents", "named"), [(torch.zeros(1, 3, 8, 8), "(1, 3, 8, 8)"), ("noise", "'noise'")])
def test_latents_that_do_not_fit_are_refused(jit, latents, named):
    with refused(named, "(1, 3, 32, 32)"):
        jit(label=1, callback_on_step_end=lambda *_: {"latents": latents}, **QUICK)


@pytest.mark.parametrize(("strength", "first"), [(1.0, 0), (0.8, 2), (0.5, 5), (0.3, 7), (0.1, 9), (0.001, 9)])
def test_strength_is_the_share_of_the_steps_that_are_run(jit, photograph, strength, first, monkeypatch):
    """The run starts at the state that the noise and the picture have at that time."""
    calls, steps = [], []
    forward = rti.Backbone.forward
    monkeypatch.setattr(rti.Backbone, "forward", lambda *args, **rest: calls.append(args) or forward(*args, **rest))
    options = QUICK | dict(num_inference_steps=10, guidance_scale=1.0)
    options |= dict(generator=seeds(2), callback_on_step_end=lambda pipe, step, *_: steps.append(step))
    jit(label=1, image=photograph, strength=strength, **options)
    assert steps == list(range(first, 10))
    _, x, t, _ = calls[0]
    assert t.item() == time_grid(10)[first].item()
    noise = draw_noise((3, 32, 32), seeds(2), 1.0)
    close(x, t * to_tensor(photograph) + (1 - t) * noise, 1e-6)


@pytest.mark.parametrize("strength", [0.1, 0.5, 0.9])
def test_a_perfect_denoiser_gives_the_image_back(jit, photograph, strength, monkeypatch):
    image = to_tensor(photograph)
    monkeypatch.setattr(rti.Backbone, "forward", lambda self, x, *args, **kw: image.expand(len(x), -1, -1, -1))
    options = QUICK | dict(num_inference_steps=10)
    result = jit(label=1, image=photograph, strength=strength, **options).images
    close(result * 2 - 1, image, 1e-4)


def test_an_image_is_fitted_and_may_be_a_tensor(jit, photograph):
    options = QUICK | dict(label=1, strength=0.5, generator=None)
    large = photograph.resize((96, 64), Image.Resampling.NEAREST)

    def run(image):
        return jit(**options | {"image": image, "generator": seeds(0)}).images

    assert run(large).shape == (1, 3, 32, 32)
    assert torch.equal(run(to_tensor(photograph)), run(photograph))
    assert torch.equal(run(photograph.convert("RGBA")), run(photograph))
    batch = jit(label=[1, 2], image=photograph, strength=0.5, generator=seeds(0, 0), **QUICK).images
    close(batch[:1], run(photograph))
    each = torch.cat([to_tensor(photograph), -to_tensor(photograph)])
    two = jit(label=[1, 1], image=each, strength=0.5, generator=seeds(0, 0), **QUICK).images
    close(two[:1], run(photograph))
    assert (two[0] - two[1]).abs().max() > 0.1


# Errors.


@pytest.mark.parametrize(
    ("call", "fragments"),
    [
        (dict(prompt=[]), ("[]",)),
        (dict(prompt=""), ("''",)),
        (dict(prompt=["a cube", "  "]), ("'  '",)),
        (dict(prompt=["a cube", 3]), ("3",)),
        (dict(prompt=5), ("5",)),
        (dict(), ("prompt", "None")),
        (dict(label=3), ("MiniT2I", "prompt", "label 3")),
        (dict(prompt="a cube", label=3), ("MiniT2I", "prompt", "label 3")),
        (dict(prompt="a cube", output_type="jpeg"), ("'jpeg'", "pil", "np", "pt")),
        (dict(prompt="a cube", output_type="latent"), ("'latent'",)),
        (dict(prompt="a cube", generator=seeds(0, 1)), ("2 generators", "1 pictures")),
        (dict(prompt="a cube", num_images_per_prompt=3, generator=seeds(0, 1)), ("2 generators", "3 pictures")),
        (dict(prompt="a cube", generator=[]), ("0 generators",)),
        (dict(prompt="a cube", generator=5), ("5",)),
        (dict(prompt="a cube", num_images_per_prompt=0), ("num_images_per_prompt", "0")),
        (dict(prompt="a cube", num_images_per_prompt=1.5), ("1.5",)),
        (dict(prompt="a cube", batch_size=0), ("batch_size", "0")),
        (dict(prompt="a cube", batch_size=1.5), ("1.5",)),
        (dict(prompt="a cube", num_inference_steps=0), ("steps", "0")),
        (dict(prompt="a cube", num_inference_steps=-1), ("steps", "-1")),
        (dict(prompt="a cube", budget=0), ("budget 0",)),
        (dict(prompt="a cube", budget=65), ("budget 65",)),
        (dict(prompt="a cube", budget=float("nan")), ("budget nan",)),
        (dict(prompt="a cube", budget=8, dense=True), ("budget 8", "dense")),
        (dict(prompt="a cube", budget="dens"), ("'dens'", "dense")),
        (dict(prompt="a cube", budget=[8, 8, 8]), ("3 budgets", "2 steps")),
        (dict(prompt="a cube", text_budget=3), ("text_budget 3", "1.0")),
        (dict(prompt="a cube", return_regions=True), ("return_regions", "give a budget")),
        (dict(prompt="a cube", strength=0.5), ("strength 0.5", "image=")),
        (dict(prompt="a cube", generator=[1]), ("generator", "[1]")),
        (dict(prompt="a cube", guidance_interval=("a", "b")), ("('a', 'b')",)),
        (dict(prompt="a cube", guidance_scale=10**400), ("guidance scale",)),
        (dict(prompt="a cube", image=Image.new("RGB", (0, 0))), ("0 x 0",)),
        (dict(prompt="a cube", image=torch.zeros(1, 3, 32, 32, dtype=torch.int8)), ("int8",)),
        (dict(prompt="a cube", image=Image.new("RGB", (32, 32)), strength="half"), ("'half'",)),
        (dict(prompt="a cube", dense=True, return_regions=True), ("return_regions",)),
        (dict(prompt="a cube", image=Image.new("RGB", (32, 32)), strength=0.0), ("strength", "0.0")),
        (dict(prompt="a cube", image=Image.new("RGB", (32, 32)), strength=1.1), ("strength", "1.1")),
        (dict(prompt="a cube", image=Image.new("RGB", (32, 32)), strength=float("nan")), ("strength", "nan")),
        (dict(prompt="a cube", image=Image.new("RGB", (32, 32)), num_inference_steps=0), ("steps", "0")),
        (dict(prompt="a cube", image=torch.zeros(1, 3, 32, 28)), ("(1, 3, 32, 28)", "(1, 3, 32, 32)")),
        (dict(prompt="a cube", image=torch.zeros(3, 32, 32)), ("(3, 32, 32)",)),
        (dict(prompt="a cube", image=torch.zeros(2, 3, 32, 32)), ("(2, 3, 32, 32)",)),
        (dict(prompt="a cube", image="photo.png"), ("photo.png",)),
    ],
)
def test_a_call_that_cannot_be_is_refused_before_the_first_step(elastic, call, fragments):
    if "budget" not in call and not {"text_budget", "return_regions", "dense"} & call.keys():
        call = call | {"budget": 16}  # as a user of an adapter would
    options = QUICK | call | dict(callback_on_step_end=lambda *_: pytest.fail("a step was taken"))
    with refused(*fragments):
        elastic(**options)
    assert elastic.model.fused  # whatever was switched for the call is switched back


@pytest.mark.parametrize(
    ("call", "fragments"),
    [
        (dict(), ("JiT", "label", "None")),
        (dict(prompt="a cube"), ("JiT", "label", "'a cube'")),
        (dict(prompt="a cube", label=3), ("JiT", "'a cube'")),
        (dict(prompt=4, label=3), ("4",)),
        (dict(label=[]), ("[]",)),
        (dict(label=11), ("label 11", "0 to 9")),
        (dict(label=[1, -1]), ("label -1",)),
        (dict(label=1.5), ("1.5",)),
        (dict(label="cat"), ("cat",)),
        (dict(label={}), ("{}",)),
        (dict(label=10**30), ("labels", "whole numbers")),
        (dict(label=3, callback_on_step_end=0), ("callback_on_step_end 0",)),
        (dict(label=True), ("True",)),
        (dict(label=1, budget=8), ("budget", "rti.attach")),
        (dict(label=1, return_regions=True), ("return_regions",)),
    ],
)
def test_a_label_that_cannot_be_is_refused(jit, call, fragments):
    with refused(*fragments):
        jit(**QUICK | call)


def test_a_callback_that_raises_stops_and_leaves_the_pipeline_usable(elastic):
    class Stop(Exception):
        pass

    def stop(pipeline, step, time, seen):
        steps.append((pipeline, step, time, seen["latents"].shape, seen["estimate"].shape))
        raise Stop

    steps = []
    expected = elastic("a cube", generator=seeds(0), budget=9, **QUICK).images
    state = snapshot(elastic.model)
    for dense in (False, True):
        with pytest.raises(Stop):
            elastic("a cube", dense=dense, callback_on_step_end=stop, **QUICK)
    assert steps == [(elastic, 0, 0.0, (1, 3, 32, 32), (1, 3, 32, 32))] * 2
    assert elastic.model.fused
    assert_same_state(elastic.model, state)
    assert torch.equal(elastic("a cube", generator=seeds(0), budget=9, **QUICK).images, expected)


def test_a_pipeline_moves_as_one(pipe):
    assert pipe("a cube", **QUICK).images.device.type == "cpu"
    assert pipe.to("meta") is pipe
    devices = {p.device.type for p in (*pipe.backbone.parameters(), *pipe.text_encoder.encoder.parameters())}
    assert devices == {"meta"}


@pytest.mark.parametrize(
    "places", [("cpu", torch.bfloat16), (torch.bfloat16, "cpu"), (torch.bfloat16,)], ids=["both", "turned", "dtype"]
)
def test_a_pipeline_may_move_to_a_dtype_too(elastic, release, places):
    assert elastic.to(*places) is elastic
    assert {parameter.dtype for parameter in elastic.model.parameters()} == {torch.bfloat16}
    assert elastic.text_encoder.encoder.dtype == torch.bfloat16  # also one that was not loaded yet
    dense = elastic("a cube", generator=seeds(0), **QUICK).images
    expected = rti.Pipeline.from_pretrained(release, dtype=torch.bfloat16)("a cube", generator=seeds(0), **QUICK).images
    assert torch.equal(dense, expected)  # the original weights, rounded once


def test_what_was_merged_moves_along_when_it_is_needed(elastic):
    """The LoRA lies outside the model while it is merged: after a move, the frozen backbone must still be at hand."""
    elastic.to("meta")
    with elastic.model.dense() as backbone:
        assert {parameter.device.type for parameter in backbone.parameters()} == {"meta"}
    elastic.model.unfuse()
    assert {parameter.device.type for parameter in elastic.model.parameters()} == {"meta"}


def test_the_original_weights_are_kept_in_the_hosts_memory(elastic, monkeypatch):
    model = elastic.model.unfuse()
    moved = []
    original = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *args, **rest: moved.append((args, rest)) or original(self, *args, **rest)
    )
    model.fuse()
    layers = sum(len(layer.original) for layer in model._fused)
    assert moved.count((("cpu",), {"copy": True})) == layers > 0


@pytest.mark.parametrize(
    ("places", "named"), [(("nowhere",), "'nowhere'"), ((torch.int8,), "torch.int8"), (("cpu", "float16"), "'float16'")]
)
def test_a_place_that_is_not_there_is_refused(jit, places, named):
    with refused(named):
        jit.to(*places)
    if not torch.cuda.is_available():
        with refused("'cuda'"):
            jit.to("cuda")


def test_both_spellings_of_the_dtype_are_taken(release):
    for name in ("dtype", "torch_dtype"):
        assert rti.Pipeline.from_pretrained(release, **{name: torch.bfloat16}).backbone.dtype == torch.bfloat16
    with refused("torch.float16", "torch.bfloat16"):
        rti.Pipeline.from_pretrained(release, dtype=torch.float16, torch_dtype=torch.bfloat16)
    with refused("'cuda'", "torch.float32"):
        rti.Pipeline.from_pretrained(release, dtype="cuda")


def test_what_is_no_model_is_refused():
    with refused("Linear", error=TypeError):
        rti.Pipeline(torch.nn.Linear(2, 2))
    with refused("'t5'"):
        rti.Pipeline(make_backbone("jit"), "t5")
