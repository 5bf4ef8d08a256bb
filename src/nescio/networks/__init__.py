"""Networks by name: trials of a store, timm, torchvision, checkpoints; facts about pretrained names."""
