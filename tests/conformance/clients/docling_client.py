"""docling's remote VLM pipeline: `docling_client.py URL CHECKPOINT`, by an interpreter that has it and
nothing of Millstream. The model is random: what it says is not judged.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from docling.datamodel.base_models import ConversionStatus, InputFormat
from docling.datamodel.pipeline_options import VlmPipelineOptions
from docling.datamodel.pipeline_options_vlm_model import ApiVlmOptions, ResponseFormat
from docling.document_converter import DocumentConverter, ImageFormatOption, PdfFormatOption
from docling.pipeline.vlm_pipeline import VlmPipeline
from PIL import Image, ImageDraw

# Answers of a random model are cut, which docling says of each page; these it has to write.
WHOLE = {
    ResponseFormat.MARKDOWN: "# A mill",
    ResponseFormat.DOCTAGS: "<doctag><text><loc_10><loc_10><loc_90><loc_20>A mill</text></doctag>",
}


def main(url: str, checkpoint: str) -> None:
    print(f"docling {version('docling')}")
    with tempfile.TemporaryDirectory() as folder:
        pdf, png = Path(folder) / "pages.pdf", Path(folder) / "page.png"
        first, second = _page("first"), _page("second")
        first.save(png)
        first.save(pdf, save_all=True, append_images=[second])
        for response_format, text in WHOLE.items():
            for path, pages in ((png, 1), (pdf, 2)):
                _convert(url, response_format, path, pages, {"max_tokens": 40})
                written = _convert(
                    url, response_format, path, pages, {"structured_outputs": {"choice": [text]}}
                )
                assert written.count("A mill") == pages, written
            print(f"  {response_format.value} passed")


def _convert(url: str, response_format: ResponseFormat, path: Path, pages: int, more: dict[str, Any]) -> str:
    done = _converter(url, response_format, more).convert(path)
    answers = [page.predictions.vlm_response for page in done.pages]
    assert len(answers) == pages
    for answer in answers:
        assert answer is not None
        assert answer.text
        assert answer.num_tokens is not None
        assert answer.num_tokens > 20
    if "max_tokens" in more:
        assert all("stop_reason=length" in error.error_message for error in done.errors), done.errors
    else:
        assert done.status is ConversionStatus.SUCCESS, (done.status, done.errors)
    return done.document.export_to_markdown()


def _page(text: str) -> Image.Image:
    made = Image.new("RGB", (300, 400), "white")
    ImageDraw.Draw(made).text((40, 40), f"The {text} page", fill="black")
    return made


def _converter(url: str, response_format: ResponseFormat, more: dict[str, Any]) -> DocumentConverter:
    params: dict[str, Any] = {"model": "default", "skip_special_tokens": False, **more}
    options = VlmPipelineOptions(
        enable_remote_services=True,
        vlm_options=ApiVlmOptions(
            url=f"{url}/v1/chat/completions",
            params=params,
            prompt="Convert this page to docling.",
            timeout=600,
            concurrency=2,
            scale=1.0,
            response_format=response_format,
        ),
    )
    formats = {
        InputFormat.PDF: PdfFormatOption(pipeline_cls=VlmPipeline, pipeline_options=options),
        InputFormat.IMAGE: ImageFormatOption(pipeline_cls=VlmPipeline, pipeline_options=options),
    }
    return DocumentConverter(allowed_formats=list(formats), format_options=formats)


if __name__ == "__main__":
    main(*sys.argv[1:])
