"""MinerU's http client: `mineru_client.py URL CHECKPOINT`, by an interpreter that has mineru-vl-utils and
nothing of Millstream. The model is random: what it says is not judged.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Any

from loguru import logger
from mineru_vl_utils import MinerUClient
from mineru_vl_utils.mineru_client import MinerUSamplingParams
from mineru_vl_utils.vlm_client.base_client import RequestError
from mineru_vl_utils.vlm_client.http_client import HttpVlmClient
from PIL import Image

PROMPT = "\nText Recognition:"
SHORT = MinerUSamplingParams(max_new_tokens=24)


def main(url: str, checkpoint: str) -> None:
    logger.remove()  # it warns of each answer that is cut
    print(f"mineru-vl-utils {version('mineru-vl-utils')}")
    pages = [Image.new("RGB", (200, 280), colour) for colour in ("white", "navy", "teal", "red")]
    client = HttpVlmClient(server_url=url, allow_truncated_content=True, use_tqdm=False)
    texts = [client.predict(page, PROMPT, SHORT) for page in pages]
    assert all(texts), texts
    print("  predict passed")
    together = client.batch_predict(pages * 5, PROMPT, SHORT)
    assert together == texts * 5
    print("  batch_predict passed")
    assert asyncio.run(client.aio_batch_predict(pages, PROMPT, SHORT)) == texts
    print("  aio_batch_predict passed")
    assert _extracted(url, pages[0]) in (None, [])  # blocks that a random model does not name
    print("  two_step_extract passed")


def _extracted(url: str, page: Image.Image) -> list[Any] | None:
    """None: the answer was cut, which it tells."""
    params = {"[default]": SHORT, "[layout]": SHORT}
    whole = MinerUClient("http-client", server_url=url, sampling_params=params, use_tqdm=False)
    try:
        return list(whole.two_step_extract(page))
    except RequestError as error:
        if "truncated due to length limit" not in str(error):
            raise
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
