/*
 * Names by which a file makes a later program of the host run code without being asked to: hooks and settings of version control, of
 * editors, agents, shells, interpreters and package managers, and the files that test runners and build programs load by name.  Not
 * source files in general: whoever runs a program that the code wrote knows that.
 */
#include "layer/internal.h"

#include <ctype.h>
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

const char *const *cell__layer_protected_names(void)
{
	return names;
}

/* One "*", at the beginning or the end. */
static bool fits(const char *pattern, const char *part, size_t size)
{
	size_t n = strlen(pattern);
	if (pattern[0] == '*')
		return size >= n - 1 && memcmp(part + size - (n - 1), pattern + 1, n - 1) == 0;
	if (pattern[n - 1] == '*')
		return size >= n - 1 && memcmp(part, pattern, n - 1) == 0;
	return size == n && memcmp(part, pattern, n) == 0;
}

bool cell__layer_is_protected(const char *path)
{
	while (*path) {
		char part[NAME_MAX + 1];
		size_t n = strcspn(path, "/"), size = n < sizeof part ? n : sizeof part;
		for (size_t i = 0; i < size; i++)
			part[i] = (char)tolower((unsigned char)path[i]);
		for (size_t i = 0; names[i]; i++)
			if (fits(names[i], part, size))
				return true;
		path += n + strspn(path + n, "/");
	}
	return false;
}
