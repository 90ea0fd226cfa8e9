"""Judging pictures: one file per scorer, built on the real architectures in transformers.

geneval      GenEval: its detector, which detections count, and the verdict; the rule itself is rti.lab.judge
clip         CLIPScore and PickScore; loading models, and pictures as they take them
imagereward  ImageReward's weights in transformers' BLIP
fidelity     PSNR, SSIM and LPIPS to the pictures of a reference
fid          Fréchet distance and Inception Score, of torch-fidelity's features or of a file's
results      what a scorer found in a folder: the file, its summary
"""
