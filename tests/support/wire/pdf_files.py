"""Small PDF files without a library: pages that are a third of a shade of grey."""

from __future__ import annotations


def pdf(*shades: float, width: float = 72, height: float = 36) -> bytes:
    """A file with a page for each shade, from 0 to 1; sizes in points."""
    kids = " ".join(f"{3 + 2 * place} 0 R" for place in range(len(shades)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(shades)} >>",
    ]
    for place, shade in enumerate(shades):
        drawn = f"{shade} g 0 0 {width / 3:.1f} {height} re f"
        box, content = f"[0 0 {width} {height}]", f"{4 + 2 * place} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Contents {content} >>")
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    data, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{one}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count, begin = len(objects) + 1, len(data)
    data += f"xref\n0 {count}\n0000000000 65535 f \n{table}".encode()
    return data + f"trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{begin}\n%%EOF\n".encode()
