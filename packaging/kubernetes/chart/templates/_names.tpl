{{- define "workcell.labels" -}}
app.kubernetes.io/name: workcell
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workcell.claim" -}}
{{ .Values.shared.claim | default (printf "%s-shared" .Release.Name) }}
{{- end }}
