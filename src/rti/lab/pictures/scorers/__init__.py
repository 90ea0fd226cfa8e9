"""Judging pictures: one file per scorer, built on the real architectures in transformers.

geneval      GenEval: which detections count, and the verdict; the rule itself is rti.lab.judge
detector     its detector, Mask2Former, with post-processing of our own; its colours, CLIP zero-shot
clip         CLIPScore and PickScore
imagereward  ImageReward's weights in transformers' BLIP
fid          Fréchet distance and Inception Score, of torch-fidelity's features or of a file's
loading      models from transformers, and pictures as they take them
results      what a scorer found in a folder: the file, its summary
"""
