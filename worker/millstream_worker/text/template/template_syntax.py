"""Has the loops, concatenations and additions of a chat template counted, and reads what transformers adds to
Jinja's syntax.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


class TemplateGuards(NodeTransformer):
    """Has loops, concatenations and additions counted."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        written = sum(len(one.data) for one in node.find_all(nodes.TemplateData))
        written += sum(len(one.value) for one in node.find_all(nodes.Const) if isinstance(one.value, str))
        node.iter = _filter("_passes", node.iter, [nodes.Const(written)], node.lineno)
        for call in node.find_all(nodes.Call) if node.recursive else ():
            if isinstance(call.node, nodes.Name) and call.node.name == "loop" and call.args:
                call.args[0] = _filter("_passes", call.args[0], [nodes.Const(written)], call.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter("_joined", node.nodes[0], node.nodes[1:], node.lineno)

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:
        """Many in a row are one: templates put texts together so."""
        self.generic_visit(node)
        left, right = node.left, node.right
        if isinstance(left, nodes.Const) and isinstance(right, nodes.Const):
            return node
        if isinstance(left, nodes.Filter) and left.name == "_added":
            left.args.append(right)
            return left
        return _filter("_added", left, [right], node.lineno)


class GenerationBlocks(Extension):
    """`{% generation %}`, which marks answers for those who train models: here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - so declared in the base class

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _filter(name: str, node: nodes.Node, args: list[nodes.Expr], line: int) -> nodes.Filter:
    return nodes.Filter(node, name, args, [], None, None, lineno=line)
