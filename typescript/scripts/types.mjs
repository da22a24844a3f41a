// Types of the session server's OpenAPI document: node scripts/types.mjs DOCUMENT.json > src/types.ts
//
// Written by hand instead of a generator package: the document uses few words of JSON Schema, and this has no dependencies.
import { readFileSync } from "node:fs";

const document = JSON.parse(readFileSync(process.argv[2], "utf8"));
const known = document.components.schemas;

const nameOf = (name) => name.split(/[^A-Za-z0-9]+/).map((word) => word[0].toUpperCase() + word.slice(1)).join("");
const quoted = (name) => (/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name));

function typeOf(schema, indent) {
	if (!schema || Object.keys(schema).length === 0 || schema === true)
		return "unknown";
	if (schema.$ref)
		return nameOf(schema.$ref.split("/").pop());
	if (schema.enum || "const" in schema)
		return (schema.enum ?? [schema.const]).map((value) => JSON.stringify(value)).join(" | ");
	if (schema.anyOf || schema.oneOf)
		return (schema.anyOf ?? schema.oneOf).map((each) => typeOf(each, indent)).join(" | ");
	const types = Array.isArray(schema.type) ? schema.type : [schema.type];
	return types.map((type) => plainType(type, schema, indent)).join(" | ");
}

function plainType(type, schema, indent) {
	switch (type) {
	case "string":
	case "boolean":
	case "null":
		return type;
	case "integer":
	case "number":
		return "number";
	case "array":
		return `Array<${typeOf(schema.items, indent)}>`;
	}
	const more = schema.additionalProperties;
	if (!schema.properties)
		return `Record<string, ${more && more !== true ? typeOf(more, indent) : "unknown"}>`;
	const inside = indent + "\t";
	const lines = Object.entries(schema.properties).map(([name, value]) => {
		const about = value.description ? `${inside}/** ${value.description.replaceAll("*/", "* /")} */\n` : "";
		return `${about}${inside}${quoted(name)}${(schema.required ?? []).includes(name) ? "" : "?"}: ${typeOf(value, inside)};\n`;
	});
	return `{\n${lines.join("")}${indent}}`;
}

const out = ["// Generated from the OpenAPI document of the session server by scripts/types.mjs. Do not edit.\n"];
for (const [name, schema] of Object.entries(known))
	out.push(`export type ${nameOf(name)} = ${typeOf(schema, "")};\n`);
for (const [path, item] of Object.entries(document.paths)) {
	for (const [method, operation] of Object.entries(item)) {
		const body = operation.requestBody?.content?.["application/json"]?.schema;
		if (body && path.startsWith("/v1/"))
			out.push(`/** The body of ${method.toUpperCase()} ${path} */\nexport type ${nameOf(operation.operationId)}Body = ${typeOf(body, "")};\n`);
	}
}
process.stdout.write(out.join("\n"));
