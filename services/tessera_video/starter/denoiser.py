"""The fourth training stage of the video starter: transformer and text encoder learn to denoise latents by prompts.

Rectified flow (Liu et al. 2022; Esser et al. 2024) as Wan's schedulers define it: the noisy latents are
(1 - s) * clean + s * noise, the transformer predicts noise - clean, and its timestep is 1000 * s. Every fourth batch
begins with a clean first frame, whose tokens have timestep 0 (Wan 2.2's image to video). A layer in the middle also
learns where things are, see `layout`. Knows no pixels.

Shapes: B clips, C latent channels, T latent frames, H and W latent sizes, L words of the longest prompt, D their width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import UMT5EncoderModel

from tessera.diffusion.families.wan.short_prompts import ShortPromptAttention
from tessera.starters.optimize import Average, adamw, autocast, generator, set_learning_rate
from tessera.starters.run import Run
from tessera_video.starter import data
from tessera_video.starter.latents import LatentPool, scene_of
from tessera_video.starter.layout import NAMES, LayoutHead, LayoutTargets, layout_of
from tessera_video.starter.model import make_tokenizer, make_transformer

STEPS, BATCH = 12_000, 32
"""Optimizer steps, and clips per step."""
WARMUP, DECAY_SHARE = 100, 0.25
"""Steps over which the learning rate rises, and the share (0 to 1) of the last steps over which it falls to 0."""
MATRIX_RATE, OTHER_RATE = 0.02, 1.5e-3
"""Peak learning rates of the matrices inside the blocks, and of all other parameters."""
AVERAGE_DECAY = 0.998
"""Decay per step of the moving average of the weights."""
DROPPED_PROMPTS = 0.1
"""Share (0 to 1) of prompts that are empty, for classifier-free guidance."""
IMAGE_EVERY = 4
"""Every so many steps a batch begins with a clean first frame."""
NOISE_MEAN, NOISE_DEVIATION = 0.7, 1.2
"""Mean and standard deviation of the noise level's logit. Most batches are noisy: there the content is decided."""
LAYOUT_LAYER, LAYOUT_WEIGHT = 3, 0.1
"""Index of the block whose features learn the layout, and the weight of that loss."""
PROMPT_TOKENS = 512
"""Tokens to which the engine pads prompts."""


class DenoiserStage:
    """A `Stage` that trains transformer and text encoder.

    Args:
        run: the training run.
        pool: the latents to learn from.
        text_encoder: the text encoder of the reading stage, which is trained further.
    """

    name = "denoiser"
    steps = STEPS

    def __init__(self, run: Run, pool: LatentPool, text_encoder: UMT5EncoderModel) -> None:
        run.reseed(self.name)
        self.run = run
        self.pool = pool
        self.tokenizer = make_tokenizer()
        self.text_encoder = text_encoder.train()
        self.transformer = make_transformer().to(run.device).train()
        initialize(self.transformer)
        config = self.transformer.config
        self.layout = LayoutHead(config.num_attention_heads * config.attention_head_dim).to(run.device)
        self._features: torch.Tensor | None = None
        self.transformer.blocks[LAYOUT_LAYER].register_forward_hook(self._keep)
        self._scenes, classes, places = [], [], []
        for clip in range(len(pool.latents_NCTHW)):
            scene, random = scene_of(run, clip)
            found = layout_of(scene, data.draw_tracks(scene, random))
            self._scenes.append(scene)
            classes.append(found[0].astype(np.int8))
            places.append(found[1].astype(np.float16))
        self._classes, self._places = np.stack(classes), np.stack(places)
        self.trained = nn.ModuleList([self.text_encoder, self.transformer])
        self.average = Average(self.trained, AVERAGE_DECAY).to(run.device)
        matrices = [parameter for parameter in self.transformer.blocks.parameters() if parameter.ndim == 2]
        chosen = {id(parameter) for parameter in matrices}
        # Orthogonalized momentum (Jordan et al. 2024): the matrices inside the blocks need fewer steps.
        self.matrices = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01, momentum=0.95)
        everything = [*self.trained.parameters(), *self.layout.parameters()]
        others = [parameter for parameter in everything if id(parameter) not in chosen]
        self.others = adamw([nn.ParameterList(others)], OTHER_RATE)

    def modules(self) -> dict[str, nn.Module]:
        """Implement this part of `Stage`."""
        return {"trained": self.trained, "average": self.average, "layout": self.layout}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Implement this part of `Stage`."""
        return {"matrices": self.matrices, "others": self.others}

    def step(self, index: int) -> dict[str, float]:
        """Implement this part of `Stage`."""
        random = generator(self.run.seed_of(self.name, index))
        clips = random.choice(len(self.pool.latents_NCTHW), BATCH, replace=False)
        prompts = [self._prompt(int(clip), random) for clip in clips]
        levels_B = torch.sigmoid(NOISE_MEAN + NOISE_DEVIATION * torch.randn(BATCH))
        noises_BCTHW = torch.randn(BATCH, *self.pool.latents_NCTHW.shape[1:])
        own = self.run.group.own_items(BATCH)
        clips, prompts = clips[own], prompts[own]
        clean_BCTHW = self.pool.latents_NCTHW[torch.from_numpy(clips)].to(self.run.device, torch.float32)
        level_B, noise_BCTHW = levels_B[own].to(self.run.device), noises_BCTHW[own].to(self.run.device)
        level_B1111 = level_B.view(-1, 1, 1, 1, 1)
        noisy_BCTHW = (1.0 - level_B1111) * clean_BCTHW + level_B1111 * noise_BCTHW
        timestep, first = 1000.0 * level_B, 0
        if index % IMAGE_EVERY == IMAGE_EVERY - 1:
            first = 1
            noisy_BCTHW[:, :, 0] = clean_BCTHW[:, :, 0]
            timestep = self._timesteps(timestep, clean_BCTHW.shape)
        # The fused kernel's backward pass is slow on a CPU with heads this small.
        with autocast(self.run.device), sdpa_kernel(SDPBackend.MATH):
            predicted_BCTHW = self.predict(noisy_BCTHW, timestep, prompts)
        wanted_BCTHW = noise_BCTHW - clean_BCTHW
        loss = (predicted_BCTHW.float() - wanted_BCTHW)[:, :, first:].square().mean()
        layout = self.layout(self._features, self._layout_of(clips))
        return self._update(index, loss, layout)

    def _keep(self, _module: nn.Module, _inputs: Any, features: torch.Tensor) -> None:
        self._features = features

    def _layout_of(self, clips: np.ndarray) -> LayoutTargets:
        classes_BAN = torch.from_numpy(self._classes[clips]).to(self.run.device, torch.int64)
        places_BNP = torch.from_numpy(self._places[clips]).to(self.run.device, torch.float32)
        return LayoutTargets({name: classes_BAN[:, row] for row, name in enumerate(NAMES)}, places_BNP)

    def _update(self, index: int, loss: torch.Tensor, layout: torch.Tensor) -> dict[str, float]:
        for optimizer, peak in ((self.matrices, MATRIX_RATE), (self.others, OTHER_RATE)):
            set_learning_rate(optimizer, peak * self._rate(index))
            optimizer.zero_grad(set_to_none=True)
        (loss + LAYOUT_WEIGHT * layout).backward()  # type: ignore[no-untyped-call]
        everything = [*self.trained.parameters(), *self.layout.parameters()]
        self.run.group.sum_gradients(everything, self.run.group.own_share(BATCH))
        length = nn.utils.clip_grad_norm_(self.trained.parameters(), 1.0)
        for optimizer in (self.matrices, self.others):
            optimizer.step()  # type: ignore[no-untyped-call]
        self.average.update(self.trained)
        return {"loss": loss.item(), "layout": layout.item(), "gradient": length.item()}

    def _rate(self, index: int) -> float:
        """Return the share (0 to 1) of the peak learning rate: it rises, stays, and falls to 0 in the last part."""
        left = (self.steps - index) / (DECAY_SHARE * self.steps)
        return min(1.0, (index + 1) / WARMUP, left)

    def _prompt(self, clip: int, random: np.random.Generator) -> str:
        return "" if random.random() < DROPPED_PROMPTS else data.describe(self._scenes[clip], random)

    def _timesteps(self, timestep_B: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return the timestep of each token, [B, latent tokens]: 0 for the tokens of the first frame."""
        _, height, width = self.transformer.config.patch_size
        frames, tokens = shape[2], (shape[3] // height) * (shape[4] // width)
        frame_T = torch.ones(frames, device=timestep_B.device)
        frame_T[0] = 0.0
        return timestep_B[:, None] * frame_T.repeat_interleave(tokens)[None]

    def predict(self, noisy_BCTHW: torch.Tensor, timestep: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """Predict noise minus clean latents; `timestep` is 1000 times the noise level, [B] or one for each token."""
        tokens = self.tokenizer(prompts, padding=True, return_tensors="pt").to(self.run.device)
        mask_BL = tokens.attention_mask
        text_BLD = self.text_encoder(tokens.input_ids.long(), mask_BL).last_hidden_state
        text_BLD = torch.cat([text_BLD * mask_BL[..., None], torch.zeros_like(text_BLD[:, :1])], dim=1)
        # As in the engine: the last token stands for all the padding.
        bias_1L = text_BLD.new_zeros(1, text_BLD.shape[1])
        bias_1L[:, -1] = float(np.log(PROMPT_TOKENS - mask_BL.shape[1]))
        padding = ShortPromptAttention()
        for block in self.transformer.blocks:
            block.attn2.set_processor(padding)
        with padding.use_bias(bias_1L):
            predicted: torch.Tensor = self.transformer(noisy_BCTHW, timestep, text_BLD, return_dict=False)[0]
        return predicted


@torch.no_grad()
def initialize(transformer: Any) -> None:
    """Initialize the weights for fast learning: blocks add little and ignore the timestep; the prediction is zero."""
    transformer.condition_embedder.time_proj.weight.zero_()
    transformer.condition_embedder.time_proj.bias.zero_()
    transformer.proj_out.weight.zero_()
    transformer.proj_out.bias.zero_()
    transformer.scale_shift_table.zero_()
    for block in transformer.blocks:
        block.scale_shift_table.zero_()
        block.scale_shift_table[:, (2, 5)] = len(transformer.blocks) ** -0.5
