"""olmOCR's `--server` client: `olmocr_client.py URL CHECKPOINT`, by an interpreter that has it and nothing of
Millstream. Its own code asks for pages, over its own HTTP; the page is drawn here, as rendering a PDF needs
poppler. The model is random: what it says is not judged.
"""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from argparse import Namespace
from importlib.metadata import version
from typing import Any

from olmocr import pipeline
from PIL import Image


def main(url: str, checkpoint: str) -> None:
    print(f"olmocr {version('olmocr')}")
    pipeline.render_pdf_to_base64png = _drawn
    pipeline.max_concurrent_requests_limit = asyncio.BoundedSemaphore(4)
    # Of free answers most are no front matter, and it tries again; the grammar is its own.
    args = Namespace(
        server=f"{url}/v1", api_key=None, model="default", target_longest_image_dim=64, guided_decoding=True
    )
    asyncio.run(_pages(args))
    print("  guided pages passed")


async def _pages(args: Namespace) -> None:
    results = await asyncio.gather(
        *(
            pipeline.try_single_page(args, "page.pdf", "page.pdf", number, attempt, 0)
            for number, attempt in ((1, 0), (2, 3))
        )
    )
    for result in results:
        assert result is not None, "it could not read the answer"
        assert result.input_tokens > 100
        assert result.output_tokens > 20
        assert result.response.rotation_correction in (0, 90, 180, 270)
    print(f"  {sum(result.is_valid for result in results)} of {len(results)} answers were whole")


def _drawn(path: str, page: int, target_longest_image_dim: int = 64, **_: Any) -> str:
    out = io.BytesIO()
    Image.new("RGB", (48, target_longest_image_dim), (60 * page, 90, 20)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
