/* Classes, and the imports they need, as text. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

/* The import lines: those of one module follow each other in enum cell__gen_import. */
static const struct {
	const char *from;
	enum cell__gen_import first, last;
} sources[] = {
	{ "datetime", GEN_DATE, GEN_TIME }, { "ipaddress", GEN_IPV4, GEN_IPV6 },     { "typing", GEN_ANNOTATED, GEN_UNION },
	{ "uuid", GEN_UUID, GEN_UUID },     { "._api", GEN_BASE_MODEL, GEN_UNIQUE },
};

void cell__gen_add_imports(struct cell__gen_module *m, struct cell__buf *out)
{
	/* Other names than their own, because fields are often called date and time. */
	static const char *const renamed[] = {
		[GEN_DATE] = "date as Date", [GEN_DATETIME] = "datetime as DateTime", [GEN_TIME] = "time as Time"
	};
	bool ours = false;
	for (size_t k = 0; k < sizeof sources / sizeof *sources; k++) {
		const char *between = "";
		for (enum cell__gen_import i = sources[k].first; i <= sources[k].last; i++) {
			if (!(m->imports >> i & 1))
				continue;
			int rc = 0;
			if (!*between)
				rc = cell__buf_printf(out, "%sfrom %s import ", i >= GEN_BASE_MODEL && ours ? "\n" : "", sources[k].from);
			if (rc == 0)
				rc = cell__buf_printf(out, "%s%s", between, i <= GEN_TIME ? renamed[i] : cell__gen_import_name(i));
			if (rc < 0)
				m->nomem = true;
			between = ", ";
			ours = true;
		}
		if (*between && cell__buf_add_str(out, "\n") < 0)
			m->nomem = true;
	}
}

static int add_enum(struct cell__buf *out, const struct cell__gen_class *class)
{
	int rc = cell__buf_printf(out, "class %s(%s):\n", class->name, class->kind == GEN_KIND_STR_ENUM ? "StrEnum" : "IntEnum");
	for (size_t i = 0; i < class->n_members && rc == 0; i++) {
		rc = cell__buf_printf(out, "    %s = ", class->members[i].name);
		if (rc == 0)
			rc = cell__gen_add_literal(out, class->members[i].value, 0);
		if (rc == 0)
			rc = cell__buf_add_str(out, "\n");
	}
	return rc;
}

/* The annotation of a field: its type, its name in JSON, and whether null may be sent for it. */
static const char *field_type(struct cell__gen_module *m, const struct cell__gen_field *field)
{
	struct cell__gen_type type = field->type;
	bool marked = !field->required && type.nullable;
	if (!field->required)
		type.nullable = true;
	const char *text = cell__gen_type_text(m, &type);
	if (strcmp(field->name, field->property) == 0 && !marked)
		return text;
	CELL_AUTO_BUF struct cell__buf notes = CELL_BUF_INIT;
	int rc = 0;
	if (strcmp(field->name, field->property) != 0) {
		cell__gen_use(m, GEN_FIELD);
		rc = cell__buf_add_str(&notes, ", Field(alias=");
		if (rc == 0)
			rc = cell__gen_add_string(&notes, field->property, strlen(field->property));
		if (rc == 0)
			rc = cell__buf_add_str(&notes, ")");
	}
	if (marked) {
		cell__gen_use(m, GEN_NULLABLE);
		rc = rc < 0 ? rc : cell__buf_add_str(&notes, ", Nullable");
	}
	if (rc < 0) {
		m->nomem = true;
		return text;
	}
	cell__gen_use(m, GEN_ANNOTATED);
	return cell__gen_printf(m, "Annotated[%s%s]", text, notes.data);
}

static int add_model(struct cell__gen_module *m, struct cell__buf *out, struct cell__gen_class *class)
{
	cell__gen_name_fields(m, class);
	if (m->nomem)
		return -1;
	int rc = cell__buf_printf(out, "class %s(BaseModel, extra=\"%s\"):\n", class->name, class->extra);
	size_t head = out->size;
	if (rc == 0)
		rc = cell__gen_add_json_doc(out, class->description, 4);
	if (rc == 0 && out->size > head && class->n_fields > 0)
		rc = cell__buf_add_str(out, "\n");
	for (size_t i = 0; i < class->n_fields && rc == 0; i++) {
		const struct cell__gen_field *field = &class->fields[i];
		rc = cell__buf_printf(out, "    %s: %s", field->name, field_type(m, field));
		if (rc == 0 && field->value)
			rc = cell__buf_printf(out, " = %s", field->value);
		if (rc == 0)
			rc = cell__buf_add_str(out, "\n");
		if (rc == 0)
			rc = cell__gen_add_json_doc(out, field->description, 4);
	}
	if (rc == 0 && out->size == head)
		rc = cell__buf_add_str(out, "    pass\n");
	return rc;
}

static int add_root(struct cell__gen_module *m, struct cell__buf *out, const struct cell__gen_class *class)
{
	cell__gen_use(m, GEN_ANY);
	int rc = cell__buf_printf(out, "class %s(RootModel[Any]):\n", class->name);
	size_t head = out->size;
	if (rc == 0)
		rc = cell__gen_add_json_doc(out, class->description, 4);
	if (rc == 0 && out->size > head)
		rc = cell__buf_add_str(out, "\n");
	return rc < 0 ? -1 : cell__buf_printf(out, "    root: %s\n", cell__gen_type_text(m, &class->root));
}

int cell__gen_add_classes(struct cell__gen_module *m, struct cell__buf *out)
{
	int rc = 0;
	for (struct cell__gen_class *class = m->first; class && rc == 0; class = class->next) {
		rc = cell__buf_add_str(out, "\n\n");
		if (rc < 0 || out->size > CELL_GEN_LIMIT_MODULE_BYTES)
			break;
		if (class->kind == GEN_KIND_MODEL)
			rc = add_model(m, out, class);
		else if (class->kind == GEN_KIND_ROOT)
			rc = add_root(m, out, class);
		else
			rc = add_enum(out, class);
	}
	if (rc == 0 && m->forward)
		rc = cell__buf_add_str(out, "\n");
	for (struct cell__gen_class *class = m->first; class && rc == 0 && m->forward; class = class->next)
		if (class->kind == GEN_KIND_MODEL || class->kind == GEN_KIND_ROOT)
			rc = cell__buf_printf(out, "\n%s.model_rebuild()", class->name);
	if (rc == 0 && m->forward)
		rc = cell__buf_add_str(out, "\n");
	return rc;
}
