"""Pretrained classifiers: what each says about labelled images, kept in the store as one dump a model."""
