/*
 * Names by which a file makes a later program of the host run code without being asked to: hooks and settings of version control, of
 * editors, agents, shells, interpreters and package managers, and the files that test runners and build programs load by name.  Not
 * source files in general: whoever runs a program that the code wrote knows that.
 */
#include "base/protected.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

/* In lower case, as file systems that ignore case would find them.  A name protects the file and everything below a folder of that name. */
static const char *const names[] = {
	/* version control */
	".git",
	".gitmodules",
	".gitattributes",
	".hg",
	".svn",
	".husky",
	".pre-commit-config.yaml",
	/* interpreters and their environments */
	".venv",
	"venv",
	"pyvenv.cfg",
	"site-packages",
	"sitecustomize.py",
	"usercustomize.py",
	"*.pth",
	"node_modules",
	".python-version",
	/* environment and shell */
	".env",
	".env.*",
	".envrc",
	".bashrc",
	".bash_profile",
	".bash_login",
	".bash_logout",
	".profile",
	".zshrc",
	".zshenv",
	".zprofile",
	".tool-versions",
	"mise.toml",
	".mise.toml",
	".direnv",
	/* test runners */
	"conftest.py",
	"pytest.ini",
	"tox.ini",
	"noxfile.py",
	/* build programs and package managers */
	"makefile",
	"gnumakefile",
	"justfile",
	".justfile",
	"taskfile.yml",
	"taskfile.yaml",
	"rakefile",
	"setup.py",
	"setup.cfg",
	"pyproject.toml",
	"package.json",
	".npmrc",
	".yarnrc",
	".yarnrc.yml",
	".pnp.cjs",
	"pip.conf",
	".pypirc",
	"build.rs",
	".cargo",
	"compose.yaml",
	"compose.yml",
	"docker-compose.yml",
	"docker-compose.yaml",
	/* continuous integration */
	".github",
	".gitlab-ci.yml",
	".gitlab",
	".circleci",
	".travis.yml",
	"jenkinsfile",
	"azure-pipelines.yml",
	".buildkite",
	/* editors */
	".vscode",
	".idea",
	".devcontainer",
	".devcontainer.json",
	".vimrc",
	".nvimrc",
	".nvim.lua",
	".exrc",
	".dir-locals.el",
	"*.code-workspace",
	".zed",
	".sublime-project",
	/* debuggers */
	".gdbinit",
	".lldbinit",
	/* agents: settings, and texts that they obey */
	".claude",
	"claude.md",
	"claude.local.md",
	".cursor",
	".cursorrules",
	".mcp.json",
	"agents.md",
	"gemini.md",
	".gemini",
	".codex",
	".aider.conf.yml",
	".windsurf",
	".windsurfrules",
	".clinerules",
	".continue",
	".copilot",
	".workcell",
	NULL,
};

const char *const *cell__protected_names(void)
{
	return names;
}

/* The name in lower case; longer ones than a file can have are cut. */
static size_t lower(const char *name, size_t size, char out[static NAME_MAX + 1])
{
	size = size < NAME_MAX + 1 ? size : NAME_MAX + 1;
	for (size_t i = 0; i < size; i++)
		out[i] = (char)tolower((unsigned char)name[i]);
	return size;
}

/* Both in lower case. */
static bool fits(const char *pattern, size_t n, const char *name, size_t size)
{
	if (n > 0 && pattern[0] == '*')
		return size >= n - 1 && memcmp(name + size - (n - 1), pattern + 1, n - 1) == 0;
	if (n > 0 && pattern[n - 1] == '*')
		return size >= n - 1 && memcmp(name, pattern, n - 1) == 0;
	return size == n && memcmp(name, pattern, n) == 0;
}

bool cell__protected_fits(const char *pattern, const char *name, size_t size)
{
	char low_pattern[NAME_MAX + 1], low_name[NAME_MAX + 1];
	size_t n = lower(pattern, strlen(pattern), low_pattern);
	return fits(low_pattern, n, low_name, lower(name, size, low_name));
}

bool cell__protected_name(const char *name, size_t size)
{
	char low[NAME_MAX + 1];
	size = lower(name, size, low);
	for (size_t i = 0; names[i]; i++)
		if (fits(names[i], strlen(names[i]), low, size))
			return true;
	return false;
}

bool cell__protected_path(const char *path)
{
	while (*path) {
		size_t n = strcspn(path, "/");
		if (cell__protected_name(path, n))
			return true;
		path += n + strspn(path + n, "/");
	}
	return false;
}
