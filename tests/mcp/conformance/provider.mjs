// oidc-provider, an authorization server of the registry, for tests/mcp/conformance/test_provider.py:
//     node provider.mjs PORT RESOURCE jwt|opaque
// One client that gets tokens for itself, and one, the server under test, that asks about tokens.
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [port, resource, format] = process.argv.slice(2);
const require = createRequire(path.join(process.env.PACKAGES, "package.json"));
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
    clients: [
        { client_id: "agent", client_secret: "agent-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
        { client_id: "cell", client_secret: "cell-secret", grant_types: [], redirect_uris: [], response_types: [] },
    ],
    scopes: ["workcell:run", "workcell:read"],
    features: {
        clientCredentials: { enabled: true },
        introspection: { enabled: true, allowedPolicy: async () => true },
        revocation: { enabled: true, allowedPolicy: async () => true },
        devInteractions: { enabled: false },
        resourceIndicators: {
            enabled: true,
            getResourceServerInfo: async (context, indicator) => ({
                scope: "workcell:run workcell:read", audience: indicator, accessTokenTTL: 600, accessTokenFormat: format,
                ...(format === "jwt" ? { jwt: { sign: { alg: "RS256" } } } : {}),
            }),
        },
    },
});
provider.listen(Number(port), "127.0.0.1", () => console.log(`listening for ${resource}`));
