// oidc-provider, an authorization server of the registry, for tests/mcp/conformance/test_provider.py:
//     node provider.mjs PORT RESOURCE jwt|opaque
// One client that gets tokens for itself, and one, the server under test, that asks about tokens. Others register themselves, for a person who
// is known at once and consents to everything.
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [port, resource, format] = process.argv.slice(2);
const require = createRequire(path.join(process.env.PACKAGES, "package.json"));
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));
const issuer = `http://127.0.0.1:${port}`;
const scopes = ["workcell:run", "workcell:read", "tracker:read", "tracker:write"];
const provider = new Provider(issuer, {
    clients: [
        { client_id: "agent", client_secret: "agent-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
        { client_id: "cell", client_secret: "cell-secret", grant_types: [], redirect_uris: [], response_types: [] },
    ],
    scopes: ["openid", "offline_access", ...scopes],
    findAccount: async (context, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
    interactions: { url: (context, interaction) => `/interaction/${interaction.uid}` },
    features: {
        clientCredentials: { enabled: true },
        introspection: { enabled: true, allowedPolicy: async () => true },
        revocation: { enabled: true, allowedPolicy: async () => true },
        registration: { enabled: true },
        devInteractions: { enabled: false },
        resourceIndicators: {
            enabled: true,
            getResourceServerInfo: async (context, indicator) => ({
                scope: scopes.join(" "), audience: indicator, accessTokenTTL: 600, accessTokenFormat: format,
                ...(format === "jwt" ? { jwt: { sign: { alg: "RS256" } } } : {}),
            }),
        },
    },
});

async function consent({ prompt: { details }, params, session }) {
    const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
    if (details.missingOIDCScope) grant.addOIDCScope(details.missingOIDCScope.join(" "));
    for (const [indicator, wanted] of Object.entries(details.missingResourceScopes ?? {})) grant.addResourceScope(indicator, wanted.join(" "));
    return { consent: { grantId: await grant.save() } };
}

provider.use(async (context, next) => {
    if (!context.path.startsWith("/interaction/")) return next();
    const asked = await provider.interactionDetails(context.req, context.res);
    const answer = asked.prompt.name === "login" ? { login: { accountId: "alice" } } : await consent(asked);
    context.respond = false;
    await provider.interactionFinished(context.req, context.res, answer, { mergeWithLastSubmission: true });
});
for (const event of ["authorization.error", "grant.error", "registration_create.error", "server_error"])
    provider.on(event, (context, error) => console.log(`${event}: ${error.error_description ?? error.stack}`));
provider.listen(Number(port), "127.0.0.1", () => console.log(`listening for ${resource}`));
