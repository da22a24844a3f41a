{{- define "workcell.labels" -}}
app.kubernetes.io/name: workcell
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workcell.claim" -}}
{{ .Values.shared.claim | default (printf "%s-shared" .Release.Name) }}
{{- end }}
{{- /* The pod of a pool. Its key is seen by the init container alone, which makes the token of this pod's server of it. */ -}}
{{- define "workcell.pool" -}}
metadata:
  labels: {workcell.pool: {{ .Release.Name }}, workcell.state: idle}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  hostUsers: {{ .Values.pool.hostUsers }}
  {{- with .Values.pool.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: 5
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
    {{- with .Values.appArmorProfile }}
    appArmorProfile: {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers:
    - name: token
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [python3, -I, /usr/local/lib/workcell/pod_token.py, /etc/workcell/pool/key, /run/workcell/token]
      env:
        - name: POD_UID
          valueFrom: {fieldRef: {fieldPath: metadata.uid}}
      securityContext: &confined
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: &resources {{- toYaml .Values.pool.resources | nindent 8 }}
      volumeMounts:
        - {name: key, mountPath: /etc/workcell/pool, readOnly: true}
        - {name: run, mountPath: /run/workcell}
  containers:
    - name: server
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --in-container
        - --listen
        - 0.0.0.0:8080
        - --auth-token-file
        - /run/workcell/token
        - --executor
        - subprocess
        - --python
        - /usr/bin/python3
        - --storage
        - /workspace/.workcell
        - --cwd
        - /workspace
        - --max-timeout
        - "0"
        - --session-idle
        - "0"
        - --log
        - json
      env:
        - {name: HOME, value: /home/workcell}
      ports:
        - {name: http, containerPort: 8080}
      securityContext: *confined
      readinessProbe:
        httpGet: {path: /ready, port: http}
        periodSeconds: 1
        failureThreshold: 2
      resources: *resources
      volumeMounts:
        - {name: run, mountPath: /run/workcell}
        - {name: work, mountPath: /workspace}
        - {name: home, mountPath: /home/workcell}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: key
      secret: {secretName: {{ .Values.pool.keySecret }}, defaultMode: 0440}
    - {name: run, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
    - {name: work, emptyDir: {sizeLimit: {{ .Values.scratch }}}}
    - {name: home, emptyDir: {sizeLimit: {{ .Values.scratch }}}}
    - {name: tmp, emptyDir: {sizeLimit: {{ .Values.scratch }}}}
{{- end }}
