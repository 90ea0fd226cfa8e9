"""A Hugging Face Space of the page: the model that ships with the package, at every budget."""

from rti.pipeline import Pipeline
from rti.web.page import build_page, launch
from rti.web.studio import Studio

studio = Studio(Pipeline.from_pretrained("scenes", fuse=False))
studio.warm_up()
page = build_page(studio)
launch(page, host=None)  # a Space says where to listen, by GRADIO_SERVER_NAME
page.block_thread()
