"""The end of a training of the penguins: the model in a file, loaded as another program would, and a prediction."""

from __future__ import annotations

import io

import torch
from torch import nn

from common.journal import Journal, say
from common.models_pytorch import PenguinNet
from common.penguins import NEW_PENGUIN, Penguins, features, prediction


def export_and_predict(journal: Journal, net: nn.Module, penguins: Penguins) -> None:
    """Rank 0 saves the weights with the scale of the features, loads both, and predicts the species of a new
    penguin."""
    scale = {"mean": torch.from_numpy(penguins.mean), "deviation": torch.from_numpy(penguins.deviation)}
    buffer = io.BytesIO()
    torch.save({"model": net.state_dict(), **scale}, buffer)
    path = journal.export("model.pt", buffer.getvalue())
    if path:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        loaded = PenguinNet()
        loaded.load_state_dict(saved["model"])
        x = (torch.tensor([features(NEW_PENGUIN)]) - saved["mean"]) / saved["deviation"]
        with torch.no_grad():
            probabilities = loaded(x.float()).softmax(dim=1)[0]
        say(f"model saved as {path} and loaded again: {prediction(probabilities.numpy())}")
