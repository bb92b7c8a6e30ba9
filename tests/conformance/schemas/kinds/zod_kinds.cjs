// zod: `node zod_kinds.cjs`, with NODE_PATH at npm's packages. Prints a line for each kind: its name, the schema of
// an object with one such field, and its instances that zod itself has parsed.
const { z } = require("zod");
const { version } = require("zod/package.json");

const Node = z.object({ value: z.number(), get nodes() { return z.array(Node); } });
const Cat = z.object({ kind: z.literal("cat"), lives: z.int() });
const Dog = z.object({ kind: z.literal("dog"), name: z.string().optional() });

const KINDS = {
  "string": [z.string(), "wind – mill"],
  "string, min and max": [z.string().min(2).max(5), "abc"],
  "string, length": [z.string().length(3), "abc"],
  "string, regex": [z.string().regex(/^[a-z]+\d$/), "ab1"],
  "string, startsWith and endsWith": [z.string().startsWith("a").endsWith("z"), "abz"],
  "string, includes": [z.string().includes("b"), "abz"],
  "string, lowercase": [z.string().lowercase(), "abc"],
  "email": [z.email(), "a@example.com"],
  "url": [z.url(), "https://a.b/c"],
  "uuid": [z.uuid(), "12345678-1234-4678-8234-567812345678"],
  "guid": [z.guid(), "12345678-1234-4678-8234-567812345678"],
  "cuid2": [z.cuid2(), "tz4a98xxat96iws9zmbrgj3a"],
  "ulid": [z.ulid(), "01ARZ3NDEKTSV4RRFFQ69G5FAV"],
  "nanoid": [z.nanoid(), "V1StGXR8_Z5jdHi6B-myT"],
  "ipv4": [z.ipv4(), "127.0.0.1"],
  "ipv6": [z.ipv6(), "::1"],
  "cidrv4": [z.cidrv4(), "127.0.0.0/8"],
  "cidrv6": [z.cidrv6(), "fe80::/64"],
  "base64": [z.base64(), "YWJj"],
  "base64url": [z.base64url(), "YWJj"],
  "e164": [z.e164(), "+4930123456"],
  "emoji": [z.emoji(), "😀"],
  "iso.date": [z.iso.date(), "2026-01-02"],
  "iso.time": [z.iso.time(), "03:04:05"],
  "iso.datetime": [z.iso.datetime(), "2026-01-02T03:04:05Z"],
  "iso.datetime with offset": [z.iso.datetime({ offset: true }), "2026-01-02T03:04:05+01:00"],
  "iso.duration": [z.iso.duration(), "P1DT2H"],
  "jwt": [z.jwt(), "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"],
  "templateLiteral": [z.templateLiteral(["v", z.number()]), "v1"],
  "number": [z.number(), 0.5],
  "number, min and max": [z.number().min(0).max(10), 7.5],
  "number, positive": [z.number().positive(), 1.5],
  "number, multipleOf": [z.number().multipleOf(0.5), 1.5],
  "int": [z.int(), -7],
  "int32": [z.int32(), -7],
  "int, positive": [z.int().positive(), 7],
  "float32": [z.float32(), 0.5],
  "boolean": [z.boolean(), true],
  "null": [z.null(), null],
  "any": [z.any(), [1]],
  "unknown": [z.unknown(), "x"],
  "json": [z.json(), { a: [1, null] }],
  "enum": [z.enum(["a", "b"]), "b"],
  "literal": [z.literal("a"), "a"],
  "literal of several": [z.literal(["a", 1, true]), 1],
  "nullable": [z.string().nullable(), null],
  "optional": [z.string().optional(), "x"],
  "default": [z.string().default("x"), "y"],
  "catch": [z.string().catch("x"), "y"],
  "readonly": [z.string().readonly(), "x"],
  "describe and meta": [z.string().describe("a name").meta({ examples: ["x"] }), "x"],
  "array": [z.array(z.int()), [1, 2]],
  "array, nonempty": [z.array(z.int()).nonempty(), [1]],
  "array, min and max": [z.array(z.int()).min(1).max(3), [1, 2]],
  "tuple": [z.tuple([z.string(), z.int()]), ["a", 1]],
  "tuple with rest": [z.tuple([z.string()], z.int()), ["a", 1, 2]],
  "object": [z.object({ a: z.int() }), { a: 1 }],
  "strictObject": [z.strictObject({ a: z.int() }), { a: 1 }],
  "looseObject": [z.looseObject({ a: z.int() }), { a: 1, b: "x" }],
  "object with catchall": [z.object({ a: z.int() }).catchall(z.string()), { a: 1, b: "x" }],
  "object, extended": [z.object({ a: z.int() }).extend({ b: z.string() }), { a: 1, b: "x" }],
  "object, partial": [z.object({ a: z.int() }).partial(), {}],
  "object, recursive": [Node, { value: 1, nodes: [{ value: 2, nodes: [] }] }],
  "record of texts": [z.record(z.string(), z.int()), { a: 1 }],
  "record of an enum": [z.record(z.enum(["a", "b"]), z.int()), { a: 1, b: 2 }],
  "partialRecord": [z.partialRecord(z.enum(["a", "b"]), z.int()), { b: 1 }],
  "record of a pattern": [z.record(z.string().regex(/^x_/), z.int()), { x_1: 1 }],
  "union": [z.union([z.string(), z.int()]), 1],
  "union of objects": [z.union([Cat, Dog]), { kind: "dog", name: "x" }],
  "discriminatedUnion": [z.discriminatedUnion("kind", [Cat, Dog]), { kind: "dog" }],
  "intersection": [z.intersection(z.looseObject({ a: z.int() }), z.looseObject({ b: z.int() })), { a: 1, b: 2 }],
  "intersection of objects": [z.intersection(z.object({ a: z.int() }), z.object({ b: z.int() })), { a: 1, b: 2 }],
  "lazy": [z.lazy(() => z.string()), "x"],
  "refine": [z.string().refine((text) => text !== "b"), "a"],
  "brand": [z.string().brand("Name"), "x"],
};

console.log(JSON.stringify({ of: `zod ${version}` }));
for (const [name, [kind, value]] of Object.entries(KINDS)) {
  const shape = z.object({ field: kind });
  const instances = [JSON.stringify(shape.parse({ field: value }))];
  console.log(JSON.stringify({ name, schema: z.toJSONSchema(shape), instances }));
}
