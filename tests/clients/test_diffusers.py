"""diffusers: the networks of Stable Diffusion and Flux, a whole pipeline, and its ways to offload."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
activations = pytest.importorskip("diffusers.models.activations")


def unet() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, norm_num_groups=8,
        block_out_channels=(16, 32), cross_attention_dim=24, attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def flux() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def unet_inputs() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(1)
    return {
        "sample": torch.randn(2, 4, 16, 16, generator=make),
        "timestep": torch.tensor([10, 500]),
        "encoder_hidden_states": torch.randn(2, 7, 24, generator=make),
    }


def flux_inputs() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(1)
    rows = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1)
    places = torch.cat([torch.zeros(16, 1), rows.reshape(16, 2).float()], -1)
    return {
        "hidden_states": torch.randn(2, 16, 4, generator=make),
        "encoder_hidden_states": torch.randn(2, 6, 32, generator=make),
        "pooled_projections": torch.randn(2, 32, generator=make),
        "timestep": torch.tensor([0.3, 0.9]),
        "img_ids": places,
        "txt_ids": torch.zeros(6, 3),
    }


@contextlib.contextmanager
def without_the_card():
    """diffusers calls npu_geglu wherever torch_npu is installed, also for tensors of the CPU, which have no such kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "is_torch_npu_available", lambda: False)
        yield


def step(model: torch.nn.Module, inputs: dict[str, torch.Tensor], device: str):
    """The prediction, and the gradients of all parameters."""
    model = copy.deepcopy(model).to(device)
    given = {name: value.to(device) for name, value in inputs.items()}
    with without_the_card() if device == "cpu" else contextlib.nullcontext():
        found = model(**given, return_dict=False)[0]
    found.square().mean().backward()
    grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return found.detach().cpu(), grads


@pytest.mark.parametrize(
    "make,inputs", [(unet, unet_inputs), (flux, flux_inputs)], ids=["unet", "flux"]
)
def test_networks_and_gradients_as_on_the_cpu(make, inputs):
    model = make()
    npu, npu_grads = step(model, inputs(), "npu")
    cpu, cpu_grads = step(model, inputs(), "cpu")
    torch.testing.assert_close(npu, cpu, rtol=1e-3, atol=1e-4)
    assert npu_grads.keys() == cpu_grads.keys() and len(npu_grads) > 20
    for name, grad in cpu_grads.items():
        torch.testing.assert_close(npu_grads[name], grad, rtol=1e-2, atol=1e-4, msg=name)


def test_geglu_is_the_card_s_operator():
    torch.manual_seed(0)
    layer = activations.GEGLU(8, 16)
    x = torch.randn(3, 8)
    with without_the_card():
        want = layer(x)
    got = copy.deepcopy(layer).npu()(x.npu())
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3)


def test_the_card_s_attention_processor():
    from diffusers.models.attention_processor import AttnProcessorNPU

    model, inputs = unet(), unet_inputs()
    want = step(model, inputs, "cpu")[0]
    model.set_attn_processor(AttnProcessorNPU())
    model = model.to("npu", torch.bfloat16)
    given = {
        n: v.npu().to(torch.bfloat16 if v.is_floating_point() else v.dtype)
        for n, v in inputs.items()
    }
    with torch.no_grad():
        got = model(**given).sample
    torch.testing.assert_close(got.float().cpu(), want, rtol=0.1, atol=0.1)


def pipeline():
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    text = CLIPTextModel(CLIPTextConfig(
        vocab_size=50, hidden_size=24, intermediate_size=32, num_hidden_layers=1, max_position_embeddings=12,
        num_attention_heads=2, eos_token_id=1, bos_token_id=0, pad_token_id=1,
    ))  # fmt: skip
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, latent_channels=4, sample_size=32,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    made = diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=None, unet=unet(), scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    made.set_progress_bar_config(disable=True)
    return made


def expected_picture() -> torch.Tensor:
    with without_the_card():
        return picture(pipeline().to("cpu"))


def picture(pipe) -> torch.Tensor:
    make = torch.Generator().manual_seed(3)
    words = torch.randn(1, 7, 24, generator=make)
    noise = torch.randn(1, 4, 16, 16, generator=make)
    return torch.from_numpy(pipe(
        prompt_embeds=words, negative_prompt_embeds=torch.zeros_like(words), latents=noise,
        num_inference_steps=3, output_type="np",
    ).images)  # fmt: skip


def test_a_pipeline_paints_the_cpu_s_picture():
    want = expected_picture()
    got = picture(pipeline().to("npu"))
    assert got.shape == (1, 32, 32, 3) and got.std() > 0
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("way", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_offload(way):
    want = expected_picture()
    pipe = pipeline()
    getattr(pipe, way)(device="npu")
    got = picture(pipe)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)
    pipe.maybe_free_model_hooks()
    assert {p.device.type for p in pipe.unet.parameters()} <= {"cpu", "meta"}


def test_group_offload_with_a_stream():
    from diffusers.hooks import apply_group_offloading

    model, inputs = unet().eval(), unet_inputs()
    with torch.no_grad():
        with without_the_card():
            want = model(**inputs).sample
        apply_group_offloading(
            model, onload_device=torch.device("npu"), offload_device=torch.device("cpu"),
            offload_type="leaf_level", use_stream=True,
        )  # fmt: skip
        got = model(**{n: v.npu() for n, v in inputs.items()}).sample
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)
