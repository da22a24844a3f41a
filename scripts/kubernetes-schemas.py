#!/usr/bin/env python3
"""kubernetes-schemas.py SWAGGER.json: writes tests/data/kubernetes.json, the part of the API's own schemas that packaging/kubernetes uses.

SWAGGER.json is api/openapi-spec/swagger.json of the Go module k8s.io/kubernetes. Descriptions are left out, and objects with named
properties take no others, as `kubectl --validate=strict` has it.
"""
import json
import os
import sys

KINDS = ("io.k8s.api.core.v1.ServiceAccount", "io.k8s.api.core.v1.ConfigMap", "io.k8s.api.core.v1.PersistentVolumeClaim",
         "io.k8s.api.core.v1.Service", "io.k8s.api.core.v1.Secret", "io.k8s.api.apps.v1.StatefulSet", "io.k8s.api.policy.v1.PodDisruptionBudget",
         "io.k8s.api.networking.v1.NetworkPolicy", "io.k8s.api.apps.v1.Deployment", "io.k8s.api.rbac.v1.Role", "io.k8s.api.rbac.v1.RoleBinding", "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler")
TARGET = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "data", "kubernetes.json")


def trimmed(schema):
    if isinstance(schema, list):
        return [trimmed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: {each: trimmed(value) for each, value in value.items()} if name == "properties" else trimmed(value)
             for name, value in schema.items() if not name.startswith("x-") and (name != "description" or isinstance(value, dict))}
    if "properties" in found:
        found["additionalProperties"] = False
    if found.get("format") == "int-or-string":
        found["type"] = ["string", "integer"]
    return found


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        swagger = json.load(file)
    wanted, found = list(KINDS), {}
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found[name] = trimmed(swagger["definitions"][name])
        text = json.dumps(found[name])
        wanted += [part.split('"')[0] for part in text.split('"#/definitions/')[1:]]
    # A quantity may be written as a number.
    found["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    os.makedirs(os.path.dirname(TARGET), exist_ok=True)
    with open(TARGET, "w", encoding="utf-8") as file:
        json.dump({"version": swagger["info"]["version"], "definitions": found}, file, sort_keys=True, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
