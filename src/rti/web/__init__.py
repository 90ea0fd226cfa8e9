"""The page to play with: `rti web`. It needs gradio: pip install 'region-tokens[demo]'.

studio   dense and region pictures from the same noise, step by step, with times; knows nothing of gradio
page     the page itself, and what visitors may send
"""
