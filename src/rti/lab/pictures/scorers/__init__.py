"""Judging pictures: one file per scorer, built on the real architectures in transformers.

geneval      GenEval: which detections count, and the verdict; the rule itself is rti.lab.judge
detector     its detector, Mask2Former, with post-processing of our own
colours      its colours, CLIP zero-shot
clip         CLIPScore and PickScore
imagereward  ImageReward's weights in transformers' BLIP
frechet      Fréchet distance and Inception Score of features
features     features from files, clean-fid or torch-fidelity
loading      models from transformers
pictures     pictures as these models take them
results      what a scorer found in a folder: the file, its summary
"""
